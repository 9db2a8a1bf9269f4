"""Edits of the flags of one command, word by word; continued lines stay as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fsdp_migrate.configs.editing.shell_words import Word, gap
from fsdp_rules.configuration.block import Change, TextEdit


@dataclass(frozen=True)
class Flag:
    """A flag as it is written: from ``words[first]`` to ``words[last]``, which are one where ``=`` joins them."""

    first: int
    last: int
    joined: bool


class FlagEditor:
    """Edits flags of ``words``, a command of ``text``. ``written`` are the flags by name, without their dashes.

    New flags come after ``anchor``, each separated as that flag is.
    """

    def __init__(self, text: str, words: list[Word], written: Mapping[str, Flag], anchor: Flag) -> None:
        self._text, self._words, self._written, self._anchor = text, words, written, anchor

    def edits(self, change: Change) -> list[TextEdit]:
        made: list[TextEdit] = []
        for name, flag in self._written.items():
            first, last = self._words[flag.first], self._words[flag.last]
            if name in change.removed:
                made.append(TextEdit(self._words[flag.first - 1].end, last.end, ""))
            elif name in change.values or name in change.names:
                new = f"--{change.names.get(name, name.lstrip('-'))}"
                value = self._value(change.values[name]) if name in change.values else None
                if flag.joined:
                    kept = first.raw.partition("=")[2]
                    made.append(TextEdit(first.start, first.end, f"{new}={value if value is not None else kept}"))
                else:
                    made.append(TextEdit(first.start, first.end, new))
                    if value is not None and flag.last != flag.first:
                        made.append(TextEdit(last.start, last.end, value))
        added = dict(change.added)
        for inner in change.beside.values():
            if isinstance(inner, Mapping):
                added.update(inner)
        if change.beside:
            added["use_parallelism_config"] = True
        if added:
            place = self._words[self._anchor.last].end
            space = gap(self._text, self._words, self._anchor.first)
            made.append(TextEdit(place, place, "".join(space + self._flag(*one) for one in added.items())))
        return made

    def _flag(self, name: str, value: object) -> str:
        return f"--{name}" if name.startswith("use_") else f"--{name} {self._value(value)}"

    def _value(self, value: object) -> str:
        return value if isinstance(value, str) else json.dumps(value)
