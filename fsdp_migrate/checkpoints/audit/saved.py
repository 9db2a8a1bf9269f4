"""The leaves of a file of ``torch.save``: what its structure says about tensors, and all between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoints.audit.directory import Members, members
from fsdp_migrate.checkpoints.audit.inventory import (
    ODD,
    Disagrees,
    Foreign,
    Leaf,
    Name,
    Part,
    Place,
    Plain,
    Tensor,
    item_size,
)
from fsdp_migrate.checkpoints.audit.opcodes import Made, Named, Pairs, Stored, structure

_KINDS = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
#: Where Python starts to refuse to spell a number, and further than any number of a checkpoint.
_LARGEST = 2**256


@dataclass(frozen=True)
class Spread:
    """A tensor's part in one rank's file: a box that is told, or the coordinates in a mesh and what they split."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Part, ...]
    local: Part | None = None
    coordinates: tuple[int, ...] = ()
    splits: tuple[tuple[int, int], ...] = ()


def leaves(file: Path, item: int = 0, length: int | None = None) -> list[tuple[Name, Leaf | Spread]]:
    """All leaves of the file, or of the archive in it, with their keys. Raises :class:`Disagrees`."""
    archive = members(file, item, file.stat().st_size if length is None else length)
    return list(_Saved(archive).leaves(structure(archive.content("data.pkl"))))


class _Saved:
    def __init__(self, archive: Members) -> None:
        self._archive = archive
        order = archive.content("byteorder") if "byteorder" in archive.places else b"little"
        self._swapped = order.strip() == b"big"

    def leaves(self, root: Any) -> Iterator[tuple[Name, Leaf | Spread]]:
        waiting: list[tuple[Name, Any]] = [((), root)]
        while waiting:
            name, value = waiting.pop()
            inner = _inner(value)
            if inner:
                waiting += [((*name, part), held) for part, held in inner]
            else:
                yield name, self._leaf(value)

    def _leaf(self, value: Any) -> Leaf | Spread:
        if isinstance(value, int) and abs(value) >= _LARGEST:
            return Foreign("a large number")
        if value is None or isinstance(value, bool | int | float | str | bytes | list | tuple):
            return Plain(value)
        if isinstance(value, Pairs) or _is_ordered(value):
            return Plain({})
        if isinstance(value, Made) and value.function == Named("_codecs", "encode"):
            text, encoding = (*value.arguments, "")[:2]
            if isinstance(text, str) and encoding == "latin1" and all(ord(letter) < 256 for letter in text):
                return Plain(bytes(map(ord, text)))
        try:
            return self._tensor(value) or Foreign(_spelled(value))
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise Disagrees(f"{self._archive.file}: a tensor that the second reader cannot read: {error}") from error

    def _tensor(self, value: Any) -> Tensor | Spread | None:
        if not isinstance(value, Made) or not isinstance(value.function, Named):
            return None
        if value.function.module not in ("torch._utils", "torch._tensor"):
            return None
        name, arguments = value.function.name, value.arguments
        if name.startswith("_rebuild_parameter"):
            return self._tensor(arguments[0])
        if name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return self._ordinary(*arguments[:4], *arguments[6:])
        if name != "_rebuild_from_type_v2":
            return None
        kind = arguments[1].name.rpartition(".")[2]
        if kind == "ShardedTensor":
            return self._sharded(arguments)
        if kind == "DTensor":
            return self._distributed(arguments)
        return self._tensor(Made(arguments[0], arguments[2]))

    def _ordinary(self, storage: Any, first: int, sizes: Any, strides: Any, *more: Any) -> Tensor | None:
        if more and isinstance(more[-1], Pairs) and any(held for _, held in more[-1].held):
            return None
        if not isinstance(storage, Stored):
            raise ValueError("no storage")
        kind = storage.key[1].name.removesuffix("Storage")
        dtype = more[0].name if kind == "Untyped" else _KINDS[kind]
        start, length = self._archive.places[f"data/{storage.key[2]}"]
        shape, size = integers(sizes), item_size(dtype)
        place = Place(
            self._archive.file,
            start + first * (size or 1),
            size or 1,
            integers(strides),
            self._archive.item,
            self._swapped,
            (size or 1) // (2 if dtype.startswith("complex") else 1),
        )
        return Tensor(dtype, shape, (Part((0,) * len(shape), shape, place),), None if size else length)

    def _sharded(self, arguments: Any) -> Spread:
        shards, told = arguments[3][0], fields(arguments[3][1])
        boxes = []
        for shard in shards:
            held = fields(shard)
            box = fields(held["metadata"])
            boxes.append(self._local(held["tensor"], integers(box["shard_offsets"]), integers(box["shard_sizes"])))
        return Spread(arguments[2][1].name, integers(told["size"]), tuple(boxes))

    def _distributed(self, arguments: Any) -> Spread:
        told = fields(arguments[3])
        spec = fields(told["_spec"])
        local = self._local(told["_local_tensor"], (), None)
        coordinates = integers(fields(spec["mesh"])["_coordinate_on_dim"])
        splits = [(place, _dim(one)) for place, one in enumerate(spec["placements"]) if _is(one, "Shard")]
        splits += [(place, _dim(one)) for place, one in enumerate(spec["placements"]) if _is(one, "_StridedShard")]
        dtype, shape = arguments[2][1].name, integers(arguments[2][2])
        return Spread(dtype, shape, (), local, coordinates, tuple(splits))

    def _local(self, value: Any, first: tuple[int, ...], sizes: tuple[int, ...] | None) -> Part:
        held = self._tensor(value)
        if not isinstance(held, Tensor):
            raise ValueError("a shard without a tensor")
        return Part(first, held.shape if sizes is None else sizes, held.parts[0].place)


def _inner(value: Any) -> list[tuple[str | int | Any, Any]]:
    """What a container holds by its keys, the last of equal ones; none of what is no container, or empty."""
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if _is_ordered(value):
        given = value.arguments[0] if value.arguments else []
        pairs = [*(tuple(pair) for pair in given), *value.pairs.held]
    elif isinstance(value, Pairs):
        pairs = value.held
    else:
        return []
    named: dict[str | int, Any] = {}
    odd = []
    for key, held in pairs:
        if type(key) is int or isinstance(key, str):
            named[key] = held
        else:
            odd.append((ODD, held))
    return [*named.items(), *odd]


def _is_ordered(value: Any) -> bool:
    return isinstance(value, Made) and value.function == Named("collections", "OrderedDict")


def fields(value: Any) -> dict[str, Any]:
    """What a pickle sets on an object, by name."""
    state = value.state if isinstance(value, Made) else value
    parts = [part for part in (state if isinstance(state, tuple) else (state,)) if part is not None]
    return {key: held for part in parts for key, held in part.held}


def integers(value: Any) -> tuple[int, ...]:
    """A shape, a stride or offsets."""
    while isinstance(value, Made):
        value = value.arguments[0] if value.arguments else ()
    found = tuple(value)
    if not all(type(one) is int and one >= 0 for one in found):
        raise ValueError("an invalid shape")
    return found


def _is(placement: Any, name: str) -> bool:
    return bool(placement.function.name.rpartition(".")[2] == name)


def _dim(placement: Any) -> int:
    told = fields(placement)
    return int(told["dim"] if "dim" in told else placement.arguments[0])


def _spelled(value: Any) -> str:
    function = value.function if isinstance(value, Made) else value
    return f"{function.module}.{function.name}" if isinstance(function, Named) else type(value).__name__
