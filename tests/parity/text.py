"""Helpers for writing source text."""

from __future__ import annotations

from collections.abc import Iterable


def indented(lines: Iterable[str], depth: int = 1) -> str:
    """``lines``, each of which may hold several, moved right by ``depth`` levels; ends with a newline."""
    every = (line for several in lines for line in several.splitlines())
    return "".join(f"{'    ' * depth}{line}".rstrip() + "\n" for line in every)
