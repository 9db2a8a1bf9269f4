"""One sentence of a message, out of what happens and of what it rests on."""

from __future__ import annotations


def sentence(change: str, *notes: str) -> str:
    """What happens, then each note: an assumption begins with "assumes", anything else is joined by "and"."""
    return ", ".join([change, *(note if note.startswith("assumes ") else f"and {note}" for note in notes if note)])
