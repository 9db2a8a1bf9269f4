"""The settings of one place, whatever it is written in, and what rules say about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fsdp_rules.verdict.finding import Level

#: What a scalar is for the framework that reads it.
Plain = str | int | float | bool | None
#: The value of a new setting: a scalar, a list, or the entries of a new mapping.
New = Plain | Mapping[str, Plain] | Sequence[str]


@dataclass(frozen=True)
class Setting:
    """One key. ``name`` is the framework's, ``written`` what the file calls it; ``start`` and ``end`` are its place.

    ``value`` is None where it is no scalar. ``fixed`` says why it cannot be edited here, empty if it can.
    """

    name: str
    written: str
    value: Plain
    start: int
    end: int
    fixed: str = ""

    @property
    def word(self) -> str:
        """The value in upper case."""
        return str(self.value).strip().upper()

    @property
    def is_true(self) -> bool:
        """Whether the value is one of the words for true that the frameworks accept."""
        return self.word in ("TRUE", "1", "YES", "Y", "T", "ON")


@dataclass(frozen=True)
class Change:
    """What becomes of settings, by the name that the file has: new values, new names, none; and what is added.

    ``beside`` is added next to the block, one level further out.
    """

    values: Mapping[str, New] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    added: Mapping[str, New] = field(default_factory=dict)
    beside: Mapping[str, New] = field(default_factory=dict)


@dataclass(frozen=True)
class TextEdit:
    """Replace the characters from ``start`` to ``end`` by ``text``."""

    start: int
    end: int
    text: str


class Editor(Protocol):
    """Turns a change of settings into edits of the text that they are written in."""

    def edits(self, change: Change) -> list[TextEdit]:
        """The edits of the text that carry out ``change``."""


class NoEditor:
    """For what is only reported, or edited in another way than as text."""

    def edits(self, change: Change) -> list[TextEdit]:
        return []


@dataclass(frozen=True)
class Block:
    """The settings of one place, by the framework's names.

    ``dialect`` names the framework; ``form`` is ``file``, ``flags`` or ``variables``. ``around`` holds what else the
    place says: other keys of the same file. ``place`` is where findings about the whole are shown. ``others`` are
    settings under names that count less than those in ``settings``: the key was written twice. ``transformers``,
    ``accelerate``, ``shards_natively``, ``older_verl`` and ``strategy_names`` as in
    :class:`fsdp_rules.settings.Settings`. ``twice`` are keys around the settings that a later one overrules.
    """

    dialect: str
    form: str
    settings: Mapping[str, Setting]
    around: Mapping[str, Plain]
    place: tuple[int, int]
    editor: Editor
    others: tuple[Setting, ...] = ()
    transformers: tuple[int, int] | None = None
    accelerate: tuple[int, int] | None = None
    shards_natively: bool = False
    older_verl: bool = False
    strategy_names: frozenset[str] = frozenset()
    twice: tuple[Setting, ...] = ()

    def get(self, name: str) -> Setting | None:
        return self.settings.get(name)

    def value(self, name: str) -> Plain:
        """The value of a setting; None if it is absent."""
        found = self.settings.get(name)
        return found.value if found else None


@dataclass(frozen=True)
class Verdict:
    """One statement of a rule. ``setting`` None means the block as a whole.

    ``keeps``: the block has to stay on FSDP1 as a whole, so that no change of it is carried out.
    """

    setting: Setting | None
    level: Level
    message: str
    advice: str = ""
    change: Change = Change()
    keeps: bool = False


def merged(changes: Iterable[Change]) -> Change:
    """All of the changes as one."""
    values: dict[str, New] = {}
    names: dict[str, str] = {}
    removed: list[str] = []
    added: dict[str, New] = {}
    beside: dict[str, New] = {}
    for change in changes:
        values.update(change.values)
        names.update(change.names)
        removed += [name for name in change.removed if name not in removed]
        added.update(change.added)
        beside.update(change.beside)
    return Change(values, names, tuple(removed), added, beside)
