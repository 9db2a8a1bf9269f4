"""JSON as nodes."""

from __future__ import annotations

import json

from fsdp_migrate.configs.nodes import Entry, Node, Unreadable
from fsdp_migrate.tree.json_spans import skip_space

_DECODER = json.JSONDecoder()


def document(text: str) -> Node:
    """The value of a JSON text. Raises :class:`Unreadable`."""
    try:
        json.loads(text)
        return _node(text, skip_space(text, 0))
    except json.JSONDecodeError as error:
        raise Unreadable(error.msg, error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise Unreadable("too deeply nested", 1) from error


def _node(text: str, start: int) -> Node:
    if text[start] == "{":
        entries: list[Entry] = []
        at = skip_space(text, start + 1)
        while text[at] != "}":
            key, key_end = _DECODER.raw_decode(text, at)
            value = _node(text, skip_space(text, skip_space(text, key_end) + 1))
            entries.append(Entry(key, at, key_end, value))
            at = _next(text, value.end)
        return Node(start, at + 1, entries=tuple(entries), is_flow=True)
    if text[start] == "[":
        items: list[Node] = []
        at = skip_space(text, start + 1)
        while text[at] != "]":
            items.append(_node(text, at))
            at = _next(text, items[-1].end)
        return Node(start, at + 1, items=tuple(items), is_flow=True)
    value, end = _DECODER.raw_decode(text, start)
    return Node(start, end, value=value)


def _next(text: str, end: int) -> int:
    """Past the comma after a value, or at the end of what holds it. The text is valid JSON."""
    at = skip_space(text, end)
    return skip_space(text, at + 1) if text[at] == "," else at
