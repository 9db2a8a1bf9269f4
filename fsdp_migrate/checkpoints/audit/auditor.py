"""The comparison of a conversion's source and target, by the second reading of both."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fsdp_migrate.checkpoints.audit import reading
from fsdp_migrate.checkpoints.audit.inventory import ODD, Disagrees, Foreign, Leaf, Name, Plain, Tensor
from fsdp_migrate.checkpoints.audit.reading import Inventory
from fsdp_migrate.checkpoints.convert.keys.names import DDP, clean
from fsdp_migrate.checkpoints.convert.state import State
from fsdp_migrate.checkpoints.entries import Bytes, Item, Key, Run, Runs, TensorEntry, ValueEntry, spelled, tensors
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.checkpoints.read.find import Found, Kind, find
from fsdp_migrate.checkpoints.read.unpickle import described
from fsdp_migrate.checkpoints.threads import mapped

_Held = TypeVar("_Held", Leaf, "TensorEntry | ValueEntry")
#: By the key of a tensor, or by what it looks like.
Digests: TypeAlias = dict[Name, str]
_Spans: TypeAlias = "tuple[int, Callable[[int, int], bytes]]"

#: What is compared at a time, and fits a processor's cache.
_SPAN = 2**18


def inventory(found: Found) -> Inventory:
    """The second reading of the files that are one checkpoint. Raises :class:`Disagrees` where it cannot follow."""
    match found.kind:
        case Kind.DCP:
            return reading.of_folder(found.files)
        case Kind.SAFETENSORS:
            return reading.of_safetensors(found.files)
        case _:
            return reading.of_ranks(found.ranks or {0: found.path})


class Audit:
    """The check of one conversion. Making it reads the source; raises :class:`Disagrees` where the readings differ."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._second = inventory(checkpoint.found)
        self._refuse_other_reading()

    def _refuse_other_reading(self) -> None:
        """Keys, how often each is there, shapes, dtypes and values of both readings are the same."""
        first = Counter(self._named(key) for key in self._checkpoint.entries)
        for name in (first - self._second.counts) or (self._second.counts - first):
            one, other = first[name], self._second.counts[name]
            raise Disagrees(f"{_shown(name)} exists {_times(one)} in one and {_times(other)} in the other file")
        for key, entry in self._checkpoint.entries.items():
            leaf = self._second.leaves.get(self._named(key))
            if leaf is not None and not _alike(entry, leaf):
                raise Disagrees(f"{spelled(key)} is {_what(entry)} in one and {_what(leaf)} in the other")

    def refuse_lost(self, state: State) -> None:
        """Raise :class:`Disagrees` where a tensor of the source is neither to be written nor left out with a note."""
        kept = {id(entry) for entry in (*state.entries.values(), *state.left_out)}
        places = {_place(where) for _, entry in tensors(state.entries) for where in _wheres(entry)}
        names = {_bare(key) for key in state.entries}
        for key, entry in tensors(self._checkpoint.entries):
            if id(entry) in kept or _bare(key) in names or not entry.numel:
                continue
            if not {_place(where) for where in _wheres(entry)} <= places:
                raise Disagrees(f"{spelled(key)} is neither written nor left out")

    def compare(self, state: State, target: Path, advance: Callable[[int], object]) -> Digests:
        """Compare what lies at ``target`` with the source, key by key and element by element, two tensors at a time.

        Where a format does not keep numbers apart from text, keys are compared by what they look like. Returns the
        SHA-256 of what was read at ``target``. Raises :class:`Disagrees` with the first difference.
        """
        found = find(target)
        if len(found) != 1:
            raise Disagrees(f"{len(found)} checkpoints were written, not one")
        exact = found[0].kind is Kind.FILE
        held, wanted = _by_key(inventory(found[0]).leaves.items(), exact), _by_key(state.entries.items(), exact)
        if wanted.keys() != held.keys():
            different = sorted(map(_shown, wanted.keys() ^ held.keys()))
            raise Disagrees(f"{different[0]} is only in one of source and target")
        sources = {id(entry): self._named(key) for key, entry in self._checkpoint.entries.items()}
        for name, (key, entry) in wanted.items():
            if not _alike(entry, held[name][1]):
                raise Disagrees(f"{_shown(key)} is {_what(held[name][1])} in the target, not {_what(entry)}")

        def compared(name: Name) -> tuple[Name, str, int] | None:
            key, entry = wanted[name]
            leaf = held[name][1]
            if not isinstance(entry, TensorEntry) or not isinstance(leaf, Tensor):
                return None
            before = self._second.leaves.get(sources[id(entry)]) if id(entry) in sources else None
            if isinstance(before, Tensor):
                source = reading.spans(before)
            else:
                source = reading.held_spans(_derived(entry, self._second))
            digest = _digest_if_equal(source, reading.spans(leaf))
            if digest is None:
                raise Disagrees(f"the elements of {_shown(key)} are not those of the source")
            return name, digest, source[0]

        digests: Digests = {}
        for done in mapped(compared, wanted):
            if done is not None:
                digests[done[0]] = done[1]
                advance(done[2])
        return digests

    def _named(self, key: Key) -> Name:
        lost = self._checkpoint.lost
        odd = [key[:end] in lost and lost[key[:end]].startswith("its key") for end in range(1, len(key) + 1)]
        return tuple(ODD if is_odd else part for is_odd, part in zip(odd, key, strict=True))


def _bare(key: Key) -> str:
    """The name without what wrappers leave in it."""
    return ".".join(part for part in clean(spelled(key)).split(".") if f"{part}." != DDP)


def _derived(entry: TensorEntry, second: Inventory) -> npt.NDArray[np.uint8]:
    """The elements of a tensor that was put together out of others, from where the second reading has those."""
    held: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
    for chunk in entry.chunks:
        if not chunk.numel:
            continue
        runs = chunk.where.parts if isinstance(chunk.where, Runs) else (Run(chunk.where, 0, chunk.numel),)
        joined = np.concatenate([_run(run, second) for run in runs if run.count])
        size = joined.size // chunk.numel
        held = held if held.size else np.empty((*entry.shape, size), np.uint8)
        box = tuple(slice(start, start + length) for start, length in zip(chunk.offsets, chunk.sizes, strict=True))
        held[box] = joined.reshape(*chunk.sizes, size)
    return held.reshape(-1)


def _run(run: Run, second: Inventory) -> npt.NDArray[np.uint8]:
    place = _place(run.where)
    for part in second.places.get(place, ()):
        if isinstance(run.where, Item) or part.place.strides == run.where.strides:
            return reading.read(part, run.first, run.count)
    raise Disagrees(f"{place[0]}: the second reader finds no tensor at byte {place[1]}")


def _wheres(entry: TensorEntry) -> Iterator[Bytes | Item]:
    for chunk in entry.chunks:
        if isinstance(chunk.where, Runs):
            yield from (run.where for run in chunk.where.parts)
        elif chunk.numel:
            yield chunk.where


def _place(where: Bytes | Item) -> tuple[Path, int]:
    return where.file, where.offset


def _by_key(leaves: Iterable[tuple[Name, _Held]], exact: bool) -> dict[Name, tuple[Name, _Held]]:
    """All that is not empty, by its key, or by what that looks like. Raises :class:`Disagrees` where two are one."""
    found: dict[Name, tuple[Name, _Held]] = {}
    for name, leaf in leaves:
        if isinstance(leaf, Plain | ValueEntry) and _is_empty(leaf):
            continue
        key = name if exact else tuple(map(str, name))
        if key in found:
            raise Disagrees(f"{_shown(name)} exists twice, once as a number and once as text")
        found[key] = name, leaf
    return found


def _is_empty(leaf: Plain | ValueEntry) -> bool:
    """Empty dictionaries and lists, which torch.distributed.checkpoint does not keep."""
    return leaf.value in ({}, [], ()) and not (isinstance(leaf, ValueEntry) and leaf.made_by)


def _alike(entry: TensorEntry | ValueEntry, leaf: Leaf) -> bool:
    if isinstance(entry, TensorEntry):
        return isinstance(leaf, Tensor) and (leaf.shape, leaf.dtype) == (entry.shape, entry.dtype)
    if entry.made_by or entry.where is not None:
        return isinstance(leaf, Foreign)
    return isinstance(leaf, Plain) and (type(leaf.value), repr(leaf.value)) == (type(entry.value), repr(entry.value))


def _what(leaf: Leaf | TensorEntry | ValueEntry) -> str:
    if isinstance(leaf, Tensor | TensorEntry):
        return f"{leaf.dtype} {leaf.shape}"
    if isinstance(leaf, Plain | ValueEntry):
        return described(leaf.value) if not (isinstance(leaf, ValueEntry) and leaf.made_by) else leaf.made_by
    return leaf.name


def _shown(name: Name) -> str:
    return ".".join("an odd key" if part is ODD else str(part) for part in name) or "the root"


def _times(number: int) -> str:
    return f"{number} time{'s' * (number != 1)}"


def _digest_if_equal(source: _Spans, target: _Spans) -> str | None:
    """The SHA-256 of ``target``; None where the two differ."""
    (number, expected), (length, found) = source, target
    if number != length:
        return None
    digest = hashlib.sha256()
    for first in range(0, number, _SPAN):
        end = min(first + _SPAN, number)
        held = found(first, end)
        if held != expected(first, end):
            return None
        digest.update(held)
    return digest.hexdigest()
