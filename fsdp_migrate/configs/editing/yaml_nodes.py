"""YAML as nodes, read the way PyYAML reads it (YAML 1.1, the last of two equal keys counts)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from fsdp_migrate.configs.nodes import Entry, Node, Unreadable
from fsdp_rules.configuration.block import Plain

#: YAML's words for truth values, in the spelling that PyYAML accepts.
_TRUE = frozenset({"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_TAG = "tag:yaml.org,2002:"


def documents(text: str) -> list[Node]:
    """The documents of a YAML text. Raises :class:`Unreadable`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # An anchor that no alias uses is fine, and one that is used twice is the user's business.
            composed = list(reader.compose_all(text))
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
        raise Unreadable(" ".join(str(reason).split()), mark.line + 1 if mark else 1) from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(type(error).__name__ if isinstance(error, RecursionError) else str(error), 1) from error
    return [_Reader(text).node(node) for node in composed if node is not None]


class _Reader:
    """Turns the nodes of one document; each node once, so that aliases stay aliases."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._done: dict[int, Node] = {}

    def node(self, raw: Any) -> Node:
        if id(raw) in self._done:
            return _shared(self._done[id(raw)])
        # An alias to a node that is being read, a loop: it reads as nothing.
        self._done[id(raw)] = Node(raw.start_mark.index, raw.start_mark.index)
        made = self._made(raw)
        self._done[id(raw)] = made
        return made

    def _made(self, raw: Any) -> Node:
        start, end, shared = raw.start_mark.index, raw.end_mark.index, bool(raw.anchor)
        if raw.id == "mapping":
            entries = self._entries(raw.value)
            return Node(start, end, entries=entries, is_shared=shared, is_flow=bool(raw.flow_style))
        if raw.id == "sequence":
            items = tuple(self.node(item) for item in raw.value)
            return Node(start, end, items=items, is_shared=shared, is_flow=bool(raw.flow_style))
        return Node(_without_anchor(self._text, start, end), end, value=_plain(raw), is_shared=shared)

    def _entries(self, pairs: Sequence[tuple[Any, Any]]) -> tuple[Entry, ...]:
        merged: list[Entry] = []
        own: list[Entry] = []
        for key, value in pairs:
            node = self.node(value)
            if key.id == "scalar" and key.value == "<<" and not key.style:
                # A key of its own counts more than one that is merged in, and an earlier source more than a later.
                for source in reversed(node.items if node.items is not None else (node,)):
                    merged += [
                        Entry(entry.key, entry.key_start, entry.key_end, _shared(entry.node), True)
                        for entry in source.entries or ()
                    ]
            else:
                name = str(key.value) if key.id == "scalar" else ""
                own.append(Entry(name, key.start_mark.index, key.end_mark.index, node))
        return (*merged, *own)


def _shared(node: Node) -> Node:
    return Node(node.start, node.end, node.value, node.entries, node.items, True, node.is_flow)


def _without_anchor(text: str, start: int, end: int) -> int:
    """Where the value itself starts, after ``&name`` and tags."""
    while start < end and text[start] in "&!":
        while start < end and not text[start].isspace():
            start += 1
        while start < end and text[start].isspace():
            start += 1
    return start


def _plain(raw: Any) -> Plain:
    text = str(raw.value)
    match str(raw.tag).removeprefix(_TAG):
        case "bool":
            return text in _TRUE
        case "null":
            return None
        case "int":
            return _number(text, int)
        case "float":
            return _number(text, float)
    return text


def _number(text: str, kind: type[int] | type[float]) -> Plain:
    try:
        return int(text.replace("_", ""), 0) if kind is int else float(text.replace("_", ""))
    except ValueError:
        # A form that only YAML knows, such as 1:30 or a number with a leading 0; no setting is written like that.
        return text
