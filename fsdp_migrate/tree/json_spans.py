"""Where the values of a JSON text stand in it, so that one of them can be replaced and the rest stay as typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def skip_space(text: str, at: int) -> int:
    """The first position from ``at`` on that is no white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of each value of the object that starts at ``start``. The text must be valid JSON."""
    at = skip_space(text, start + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        # Past the colon, which valid JSON has here.
        begin = skip_space(text, skip_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        yield key, begin, end
        at = _past_comma(text, end)


def items(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Start and end of each item of the array that starts at ``start``. The text must be valid JSON."""
    at = skip_space(text, start + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield at, end
        at = _past_comma(text, end)


def _past_comma(text: str, end: int) -> int:
    at = skip_space(text, end)
    return skip_space(text, at + 1) if text[at] == "," else at
