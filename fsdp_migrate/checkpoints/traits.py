"""What keys and shapes tell: flat parameters, optimizers and how they are keyed, ties, and what is missing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.checkpoints.coverage import chunk_size, union
from fsdp_migrate.checkpoints.entries import (
    Bytes,
    Chunk,
    Entries,
    Item,
    Key,
    Runs,
    TensorEntry,
    ValueEntry,
    box,
    tensors,
)

_FLAT = re.compile(r"(^|\.)_?flat_param(_\d+)?$")
_ID_STATE = re.compile(r"(?P<prefix>.*?)\.?\bstate\.(?P<id>\d+)\.[^.]+$")


@dataclass(frozen=True)
class Optimizer:
    """An optimizer in a checkpoint: where it lies and what its states are keyed by, ``fqn`` or ``id``."""

    prefix: Key
    keyed_by: str
    groups: int


def flat_parameters(entries: Entries) -> list[Key]:
    """The keys of flat parameters, which hold all parameters of an FSDP unit end to end."""
    return [key for key, _ in tensors(entries) if key and isinstance(key[-1], str) and is_flat(key[-1])]


def is_flat(name: str) -> bool:
    """Whether it is the name of a flat parameter."""
    return _FLAT.search(name) is not None


def optimizers(entries: Entries) -> list[Optimizer]:
    """The optimizers that have states, in their order."""
    kinds: dict[Key, str] = {}
    for key, _ in tensors(entries):
        match key:
            case (*prefix, "state", int() | str() as owner, str()):
                # torch.distributed.checkpoint spells ids; a parameter may be called 0 too.
                looks = "id" if isinstance(owner, int) or owner.isdigit() else "fqn"
                kinds.setdefault(tuple(prefix), _keyed_by(entries, tuple(prefix)) or looks)
            case (str(name),) if (told := _ID_STATE.match(name)) is not None:
                kinds[(told["prefix"],) if told["prefix"] else ()] = "id"
    return [Optimizer(prefix, kind, groups) for prefix, kind in kinds.items() if (groups := _groups(entries, prefix))]


def are_slices(files: Sequence[Entries]) -> bool:
    """Whether these files hold optimizers keyed by parameter id that FSDP1 has flattened, so that each is a slice."""
    states = [entry.shape for entries in files for key, entry in tensors(entries) if "state" in key]
    by_id = all(any(one.keyed_by == "id" for one in optimizers(entries)) for entries in files)
    return by_id and any(states) and all(len(shape) <= 1 for shape in states)


def ties(entries: Entries) -> list[tuple[Key, ...]]:
    """The keys that name the same elements of the same storage, in groups; those of tensors without dimensions not."""
    groups: dict[object, list[Key]] = defaultdict(list)
    for key, entry in tensors(entries):
        places = tuple((chunk.offsets, chunk.sizes, chunk.where) for chunk in entry.chunks if chunk.numel)
        if entry.shape and places and all(isinstance(where, Bytes | Runs) for _, _, where in places):
            groups[(entry.shape, entry.dtype, places)].append(key)
    return [tuple(keys) for keys in groups.values() if len(keys) > 1]


def shared_moments(entries: Entries) -> dict[Key, tuple[str, ...]]:
    """The parameters of optimizers of which several states are one tensor, so that all but one are lost, with those."""
    found: dict[Key, tuple[str, ...]] = {}
    for optimizer in optimizers(entries):
        for keys in owners(entries, optimizer.prefix).values():
            for parameter in dict.fromkeys(key[:-1] for key in keys):
                states = tuple(str(key[-1]) for key in keys if key[:-1] == parameter)
                found |= {parameter: states} if len(states) > 1 else {}
    return found


def sharing(entries: Entries, prefix: Key) -> set[Key]:
    """The parameters that share a state with another one, which optimizers change in place: ``step`` of a flat one."""
    found: set[Key] = set()
    for keys in owners(entries, prefix).values():
        parameters = {key[:-1] for key in keys}
        found.update(parameters if len(parameters) > 1 else ())
    return found


def owners(entries: Entries, prefix: Key) -> dict[object, list[Key]]:
    """The keys of the states of the optimizer under ``prefix`` by where their elements are."""
    start = (*prefix, "state")
    found: dict[object, list[Key]] = defaultdict(list)
    for key, entry in tensors(entries):
        if key[: len(start)] == start and entry.numel:
            found[entry.chunks].append(key)
    return found


def missing(entry: TensorEntry) -> int:
    """How many elements no chunk holds; chunks that are nowhere hold none. Raises as :func:`coverage.union`."""
    boxes = [box(chunk) for chunk in entry.chunks if chunk.numel and _lies_somewhere(chunk)]
    if not entry.numel:
        return 0
    if not entry.shape:
        return 0 if boxes or any(_lies_somewhere(chunk) for chunk in entry.chunks) else 1
    return entry.numel - union(boxes)


def overlaps(entry: TensorEntry) -> bool:
    """Whether some element is in two chunks, copies of whole chunks (``replicas``) not counted."""
    boxes = [box(chunk) for chunk in entry.chunks if chunk.numel and _lies_somewhere(chunk)]
    return bool(entry.shape) and sum(chunk_size(one) for one in boxes) > union(boxes)


def _lies_somewhere(chunk: Chunk) -> bool:
    return not isinstance(chunk.where, Item) or chunk.where.length > 0


def _keyed_by(entries: Entries, prefix: Key) -> str | None:
    """What the lists of the groups under ``prefix`` name parameters by; None where they are not there."""
    for key, entry in entries.items():
        if isinstance(entry, ValueEntry) and key[: len(prefix) + 1] == (*prefix, "param_groups"):
            match key[len(prefix) + 1 :]:
                case (int(), "params", int()) if isinstance(entry.value, int | str):
                    return "id" if isinstance(entry.value, int) else "fqn"
    return None


def _groups(entries: Entries, prefix: Key) -> int:
    """The number of param groups beside the states under ``prefix``; 1 where they are one value or flattened."""
    start = (*prefix, "param_groups")
    numbers = {key[len(start)] for key in entries if key[: len(start)] == start and len(key) > len(start)}
    if numbers:
        return len(numbers)
    dotted = ".".join(map(str, start))
    return int(start in entries or any(len(key) == 1 and str(key[0]).startswith(dotted) for key in entries))
