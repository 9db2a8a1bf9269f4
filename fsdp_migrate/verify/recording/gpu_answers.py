"""What the CPU has answered for the GPUs of a run with ``--cpu``."""

from __future__ import annotations

import json
from pathlib import Path

_MANY = 8


def answers(out: Path) -> list[str]:
    """One note with the lines that asked, from what a run has written to the folder ``out``; none where nothing did."""
    files = [*out.glob("on-cpu.jsonl"), *out.glob("*/on-cpu.jsonl")]
    lines = dict.fromkeys(line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    places: dict[str, list[str]] = {}
    for path, number, what in map(json.loads, lines):
        places.setdefault(f"{path}:{number}", []).append(what)
    if not places:
        return []
    asked = [f"{place} ({', '.join(what)})" for place, what in places.items()]
    more = f" and {len(asked) - _MANY} more" if len(asked) > _MANY else ""
    return [f"the CPU and gloo replaced the GPU (--cpu) at {', '.join(asked[:_MANY])}{more}"]
