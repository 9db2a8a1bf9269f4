"""Machine, versions and date: what every measurement carries."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata


def conditions(*packages: str, device: str = "") -> dict[str, object]:
    """The day, Python and ``packages`` by their versions, and the machine; ``device`` is the GPU, if one was used."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "machine": {"device": device or _processor(), "cores": os.cpu_count()},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
