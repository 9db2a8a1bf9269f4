"""The base class of the dialects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Protocol

from fsdp_migrate.configs.editing.mapping_edits import MappingEditor
from fsdp_migrate.configs.nodes import Entry, Node, Text
from fsdp_rules.configuration.block import Block, Change, Setting, TextEdit

SHARED = "it comes from a YAML anchor or merge that other places also use"
#: Keys of the mappings around a framework's settings.
_AROUND = frozenset({"fsdp_config", "fsdp", "distributed_type", "fsdp_version", "strategy", "actor_rollout_ref"})
#: Keys that several frameworks read beside their settings.
PRECISION = frozenset({"bf16", "fp16", "mixed_precision"})


class Dialect(Protocol):
    """One framework's configuration in documents.

    ``around`` are the keys beside its settings that a rule looks at, or that hold them.
    """

    name: ClassVar[str]
    around: ClassVar[frozenset[str]]

    def blocks(self, text: Text, root: Node, path: str, is_json: bool) -> Iterable[Block]:
        """The blocks of settings in a document; none if it is of another dialect."""


class DocumentEditor:
    """Edits a mapping of a document, and the one around it."""

    def __init__(self, text: Text, node: Node, outer: Node, is_json: bool) -> None:
        self._text, self._node, self._outer, self._is_json = text, node, outer, is_json

    def edits(self, change: Change) -> list[TextEdit]:
        inner = MappingEditor(self._text, self._node, self._is_json)
        made = inner.edits(change.values, change.names, change.removed, change.added)
        if change.beside:
            outer = MappingEditor(self._text, self._outer, self._is_json)
            known = {entry.key for entry in self._outer.entries or () if not entry.is_merged}
            there = {name: value for name, value in change.beside.items() if name in known}
            made += outer.edits(there, {}, (), {name: new for name, new in change.beside.items() if name not in known})
            made = [self._beside_removed(edit, made) for edit in made]
        return made

    def _beside_removed(self, edit: TextEdit, made: list[TextEdit]) -> TextEdit:
        """``edit``, or what it becomes where it adds lines behind one that is removed: the same in front of it."""
        if edit.start == edit.end:
            for other in made:
                if other.start < edit.start < other.end and not other.text:
                    newline = self._text.newline
                    return TextEdit(other.start, other.start, edit.text.removeprefix(newline) + newline)
        return edit


def setting(name: str, entry: Entry) -> Setting:
    """An entry of a mapping as the setting ``name``."""
    node = entry.node
    fixed = SHARED if entry.is_merged or node.is_shared else ""
    return Setting(name, entry.key, node.value if node.is_scalar else None, entry.key_start, node.end, fixed)


def written_twice(root: Node, around: frozenset[str]) -> Iterator[Setting]:
    """The entries named in ``around``, beside a framework's settings, that a later one of their mapping overrules."""
    for _, node in root.mappings():
        own = [entry for entry in node.entries or () if not entry.is_merged]
        if _AROUND.isdisjoint(entry.key for entry in own):
            continue
        last = {entry.key: entry for entry in own}
        yield from (setting(entry.key, entry) for entry in own if entry.key in around and last[entry.key] is not entry)
