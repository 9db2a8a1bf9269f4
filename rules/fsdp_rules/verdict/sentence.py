"""One sentence of a message, out of what happens and of what it rests on."""

from __future__ import annotations


def sentence(change: str, *notes: str) -> str:
    """What happens, then each note: ``assumes ...`` becomes "assuming ...", anything else is joined by "and"."""
    return ", ".join([change, *(_joined(note) for note in notes if note)])


def _joined(note: str) -> str:
    return f"assuming {note.removeprefix('assumes ')}" if note.startswith("assumes ") else f"and {note}"
