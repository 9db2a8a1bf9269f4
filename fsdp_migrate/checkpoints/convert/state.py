"""What a checkpoint holds on its way from the files that it was read from to those that it is written to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from fsdp_migrate.checkpoints.entries import Entries, Key, Sequences, TensorEntry, ValueEntry, spelled


class CannotConvert(Exception):
    """A checkpoint that cannot be written as asked; the message says what is in the way, where, and what to do."""


@dataclass(frozen=True)
class State:
    """``entries`` as they are to be written, under their new keys; their chunks still lie in the files of the source.

    ``sequences``: which of the keys' prefixes are lists and tuples. ``notes``: what was changed on the way, and what
    was left out, as sentences for the person who asked. ``aliases``: names that were left out, and the name in
    ``entries`` of the same elements, which a model that is loaded strictly wants under both. ``left_out``: the entries
    that were left out, each with a note.
    """

    entries: Entries
    sequences: Sequences
    notes: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    left_out: tuple[TensorEntry | ValueEntry, ...] = ()

    def noting(self, *notes: str) -> State:
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def without(self, keys: Iterable[Key]) -> State:
        """The same but for these keys."""
        gone = set(keys)
        left_out = (entry for key, entry in self.entries.items() if key in gone)
        kept = {key: entry for key, entry in self.entries.items() if key not in gone}
        return replace(self, entries=kept, left_out=(*self.left_out, *left_out))

    def renamed(self, rename: Callable[[Key], Key]) -> State:
        """The same under other keys. Raises :class:`CannotConvert` where two become one, of dictionaries too."""
        entries: Entries = {}
        before: dict[Key, Key] = {}
        for key, entry in self.entries.items():
            new = rename(key)
            # Two dictionaries that become one would be mixed, whether or not they have a key in common.
            for end in range(1, len(key) + 1) if len(new) == len(key) else (len(new),):
                old = key[:end] if len(new) == len(key) else key
                if before.setdefault(new[:end], old) != old:
                    both = f"{spelled(before[new[:end]])} and {spelled(old)}"
                    raise CannotConvert(f"{both} would both be called {spelled(new[:end])}")
            entries[new] = entry
        return replace(self, entries=entries, sequences={rename(key): kind for key, kind in self.sequences.items()})


def nested(state: State, leaf: Callable[[Key, TensorEntry | ValueEntry], Any]) -> Any:
    """The dictionaries, lists and tuples that the keys describe, with what ``leaf`` makes of each entry in them."""
    if list(state.entries) == [()]:
        return leaf((), state.entries[()])
    root: dict[Any, Any] = {}
    for key, entry in state.entries.items():
        held = root
        for part in key[:-1]:
            held = held.setdefault(part, {})
        held[key[-1]] = leaf(key, entry)
    for key in sorted(state.sequences, key=len, reverse=True):
        _make_sequence(root, key, state.sequences[key])
    return _sequence(state.sequences[()], root) if () in state.sequences else root


def _make_sequence(root: dict[Any, Any], key: Key, kind: type[Any]) -> None:
    held: Any = root
    for part in key[:-1]:
        held = held.get(part) if isinstance(held, dict) else None
    if isinstance(held, dict) and key and isinstance(held.get(key[-1]), dict):
        held[key[-1]] = _sequence(kind, held[key[-1]])


def _sequence(kind: type[Any], parts: dict[Any, Any]) -> Any:
    return kind(parts[place] for place in sorted(parts))
