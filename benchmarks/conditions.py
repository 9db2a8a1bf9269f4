"""Machine, versions and date: what every measurement carries."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path


def conditions(*packages: str, device: str = "") -> dict[str, object]:
    """The day, Python and ``packages`` by their versions, and the machine; ``device`` is the GPU, if one was used."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "machine": {"device": device or _processor(), "cores": os.cpu_count()},
    }


def write(result: Mapping[str, object], output: Path | None) -> None:
    """Print ``result`` as JSON, and write it to the file ``output`` too, if there is one."""
    text = json.dumps(result, indent=2) + "\n"
    if output:
        output.write_text(text, encoding="utf-8")
    print(text, end="")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
