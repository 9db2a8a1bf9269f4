"""The leaves of a folder of torch.distributed.checkpoint: the structure of ``.metadata``, and of each item it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoints.audit.inventory import Disagrees, Leaf, Name, Part, Tensor
from fsdp_migrate.checkpoints.audit.opcodes import Pairs, structure
from fsdp_migrate.checkpoints.audit.saved import Spread, fields, integers, leaves


def leaves_of(files: Sequence[Path]) -> Iterator[tuple[Name, Leaf | Spread]]:
    """All leaves of the folder with these files; ranks may each have written a ``.metadata``."""
    whole = [file for file in files if file.name == ".metadata"]
    tensors: dict[Name, Tensor] = {}
    seen: set[Name] = set()
    for file in whole or sorted(file for file in files if file.suffix == ".metadata"):
        try:
            told = fields(structure(file.read_bytes()))
            names = dict(told["planner_data"].held) if isinstance(told.get("planner_data"), Pairs) else {}
            places = dict(_places(file.parent, told["storage_data"]))
            for fqn, entry in told["state_dict_metadata"].held:
                name = _name(fqn, names)
                if entry.function.name == "TensorStorageMetadata":
                    before = tensors.get(name)
                    tensors[name] = _tensor(fqn, fields(entry), places, before.parts if before else ())
                elif name not in seen:
                    seen.add(name)
                    yield from (((*name, *inner), leaf) for inner, leaf in leaves(*places[str(fqn), None]))
        except (OSError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise Disagrees(f"{file}: metadata that the second reader cannot read: {error!r}") from error
    yield from tensors.items()


def _name(fqn: Any, names: dict[Any, Any]) -> Name:
    path = names.get(fqn)
    if isinstance(path, tuple) and path and all(isinstance(part, str | int) for part in path):
        return path
    return (str(fqn),)


def _places(folder: Path, stored: Any) -> Iterator[tuple[tuple[str, tuple[int, ...] | None], tuple[Path, int, int]]]:
    for index, info in stored.held:
        place, told = fields(index), fields(info)
        offsets = place.get("offset")
        where = folder / told["relative_path"], told["offset"], told["length"]
        yield (str(place["fqn"]), None if offsets is None else integers(offsets)), where


def _tensor(fqn: Any, told: dict[str, Any], places: dict[Any, tuple[Path, int, int]], parts: Sequence[Part]) -> Tensor:
    shape = integers(told["size"])
    found = list(parts)
    for chunk in map(fields, told["chunks"]):
        first, sizes = integers(chunk["offsets"]), integers(chunk["sizes"])
        if 0 in sizes:
            continue
        where = places.get((str(fqn), first)) or places[str(fqn), None]
        ((name, leaf),) = leaves(*where)
        if name or not isinstance(leaf, Tensor):
            raise ValueError(f"{fqn} has a chunk that is not a tensor")
        found.append(Part(first, sizes, leaf.parts[0].place))
    return Tensor(_dtype(told["properties"]), shape, tuple(found))


def _dtype(properties: Any) -> str:
    state = properties.state
    first = state[0] if isinstance(state, tuple) and not isinstance(state[0], Pairs | None) else None
    return str((first or fields(properties)["dtype"]).name)
