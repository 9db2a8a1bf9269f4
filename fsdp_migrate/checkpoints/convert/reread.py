"""Whether what was written is what was read: the target, opened as any checkpoint, against digests of the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from fsdp_migrate.checkpoints.convert.state import State
from fsdp_migrate.checkpoints.convert.stream import Box, Digests, digest
from fsdp_migrate.checkpoints.entries import Key, TensorEntry, ValueEntry, box, spelled, tensors
from fsdp_migrate.checkpoints.read import elements
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all

Value = TypeVar("Value")


class Differs(Exception):
    """What was written is not what was read; the message names the first difference."""


def verify(state: State, target: Path, digests: Digests, advance: Callable[[int], object]) -> None:
    """Read all that lies at ``target`` and compare it with ``state``, tensors by the digests of when they were read.

    Keys are compared by what they look like, as not every format keeps numbers apart from text. Raises
    :class:`Differs`, or :class:`BadCheckpoint` where it cannot even be read.
    """
    found = open_all(target)
    if len(found) != 1 or found[0].problems:
        raise Differs(f"{target}: {found[0].problems[0] if found else 'nothing was found there'}")
    wanted = _by_name({key: (key, entry) for key, entry in state.entries.items() if not _is_empty(entry)}, "source")
    held = _by_name({key: entry for key, entry in found[0].entries.items() if not _is_empty(entry)}, "target")
    if held.keys() != wanted.keys():
        different = sorted(map(spelled, held.keys() ^ wanted.keys()))
        raise Differs(f"{target}: {different[0]} is only in one of source and target")
    by_key: dict[Key, dict[Box, bytes]] = {}
    for (key, where), one in digests.items():
        by_key.setdefault(key, {})[where] = one
    # Of several names for the same elements one alone may have been read.
    same = {_elements(entry): by_key[key] for key, entry in tensors(state.entries) if key in by_key}
    for name, (key, entry) in wanted.items():
        written = held[name]
        if isinstance(entry, ValueEntry) or isinstance(written, ValueEntry):
            if repr(entry) != repr(written):
                raise Differs(f"{target}: {spelled(key)} is {written} and not {entry}")
        elif (written.shape, written.dtype) != (entry.shape, entry.dtype):
            raise Differs(
                f"{target}: {spelled(key)} is {written.dtype} {written.shape}, not {entry.dtype} {entry.shape}"
            )
        else:
            _compare(target, written, by_key[key] if key in by_key else same[_elements(entry)], key, advance)


def _compare(
    target: Path, written: TensorEntry, digests: dict[Box, bytes], key: Key, advance: Callable[[int], object]
) -> None:
    for where, wanted in digests.items():
        chunk = next((chunk for chunk in written.chunks if box(chunk) == where and written.stored is None), None)
        part = elements.whole(written) if chunk is None else elements.of_chunk(chunk, written.dtype)
        if digest(part) != wanted:
            raise Differs(f"{target}: the elements of {spelled(key)} are not those of the source")
        advance(len(part))


def _elements(entry: TensorEntry) -> object:
    return entry.shape, entry.dtype, entry.chunks


def _by_name(entries: Mapping[Key, Value], where: str) -> dict[Key, Value]:
    """The entries by what their keys look like. Raises :class:`Differs` where two look alike: one hides the other."""
    found: dict[Key, Value] = {}
    for key, entry in entries.items():
        plain = tuple(map(str, key))
        if plain in found:
            raise Differs(f"{spelled(key)} is in the {where} twice, once as a number and once as text")
        found[plain] = entry
    return found


def _is_empty(entry: object) -> bool:
    """Empty dictionaries and lists, which torch.distributed.checkpoint does not keep."""
    return isinstance(entry, ValueEntry) and entry.value in ({}, [], ()) and not entry.made_by
