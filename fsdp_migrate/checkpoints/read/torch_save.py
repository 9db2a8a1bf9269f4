"""Files of ``torch.save``: what they hold, read from the archive's directory and its pickle alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoints.entries import (
    ITEM_SIZES,
    BadCheckpoint,
    Bytes,
    Chunk,
    Entries,
    Item,
    Key,
    Sequences,
    TensorEntry,
    ValueEntry,
)
from fsdp_migrate.checkpoints.read import pieces
from fsdp_migrate.checkpoints.read.archive import Archive, described, open_archive, whole
from fsdp_migrate.checkpoints.read.unpickle import (
    Call,
    Dictionary,
    Global,
    Persistent,
    Pickled,
    global_of,
)
from fsdp_migrate.checkpoints.read.unpickle import read as read_pickle

_STORAGES = {
    "BoolStorage": "bool",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "IntStorage": "int32",
    "FloatStorage": "float32",
    "LongStorage": "int64",
    "DoubleStorage": "float64",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_MISTAKES = (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError)
#: How protocol 2, which torch pickles with, spells bytes.
_BYTES = Global("_codecs", "encode")
_PLAIN = (bool, int, float, complex, str, bytes)


@dataclass(frozen=True)
class TorchFile:
    """What one file of ``torch.save`` holds.

    ``names`` are all classes and functions that its pickle names. ``rank`` and ``world_size`` are those of the process
    that saved it, where a ShardedTensor or DTensor in it says so. ``fsdp1``: it carries a mark that FSDP1 alone leaves.
    ``sequences``: the keys of lists and tuples. ``of_modules``: those of dictionaries that ``Module.state_dict`` made,
    in the order of the module; who copies one into another dictionary loses the mark.
    """

    path: Path
    names: frozenset[Global]
    records: frozenset[str]
    entries: Entries
    rank: int | None
    world_size: int | None
    fsdp1: bool
    sequences: Sequences = field(default_factory=dict)
    of_modules: frozenset[Key] = frozenset()


def read(path: Path) -> TorchFile:
    """What the file holds; none of its tensors is read.

    Raises :class:`BadCheckpoint` for anything that ``torch.save`` does not write.
    """
    return read_item(whole(path))


def read_item(item: Item) -> TorchFile:
    """As :func:`read`, for a file of ``torch.save`` inside another one."""
    archive = open_archive(item)
    return of(archive, read_pickle(archive.pickles["data.pkl"]))


def of(archive: Archive, pickled: Pickled) -> TorchFile:
    """As :func:`read`, for an archive whose ``data.pkl`` has been read."""
    if pickled.error is not None:
        raise BadCheckpoint(f"{described(archive.item)}: {pickled.error}")
    return _TorchFileOf(archive, pickled).made()


def tensor_in(item: Item) -> TensorEntry:
    """The one tensor that a chunk of torch.distributed.checkpoint holds, with its bytes' place in the file."""
    found = list(read_item(item).entries.items())
    if len(found) == 1 and found[0][0] == () and isinstance(found[0][1], TensorEntry):
        return found[0][1]
    raise BadCheckpoint(f"{described(item)}: a tensor was expected here, it holds something else")


class _TorchFileOf:
    """Turns what a pickle describes into entries."""

    def __init__(self, archive: Archive, pickled: Pickled) -> None:
        self._archive = archive
        self._pickled = pickled
        self._where = described(archive.item)
        self._around: set[int] = set()
        self._left = pickled.length
        self._rank: int | None = None
        self._world_size: int | None = None
        self._fsdp1 = False
        self._sequences: Sequences = {}
        self._of_modules: set[Key] = set()

    def made(self) -> TorchFile:
        try:
            entries = dict(self._entries((), self._pickled.value))
        except RecursionError as error:
            raise BadCheckpoint(f"{self._where}: dictionaries or lists nested too deeply") from error
        return TorchFile(
            self._archive.item.file,
            self._pickled.names,
            self._archive.records,
            entries,
            self._rank,
            self._world_size,
            self._fsdp1,
            self._sequences,
            frozenset(self._of_modules),
        )

    def _entries(self, key: Key, value: Any) -> Iterator[tuple[Key, TensorEntry | ValueEntry]]:
        # What one pickle may hold twice by reference, it could hold 2**30 times in 30 steps.
        self._left -= 1
        if self._left < 0:
            raise BadCheckpoint(f"{self._where}: it holds more values than its pickle has bytes")
        if isinstance(value, Dictionary) and value.attributes is not None:
            versions = _versions(value.attributes)
            self._fsdp1 = self._fsdp1 or any("_fsdp_wrapped_module" in str(path) for path in versions)
            if versions:
                self._of_modules.add(key)
        if isinstance(value, dict | list | tuple) and value:
            if id(value) in self._around:
                raise BadCheckpoint(f"{self._where}: a dictionary or list that holds itself")
            self._around.add(id(value))
            if not isinstance(value, dict):
                self._sequences[key] = list if isinstance(value, list) else tuple
            for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self._entries((*key, part if isinstance(part, str | int) else _name(part)), inner)
            self._around.discard(id(value))
            return
        yield key, self._tensor(value) or _plain(value)

    def _tensor(self, value: Any) -> TensorEntry | None:
        if not isinstance(value, Call) or value.function.module not in ("torch._utils", "torch._tensor"):
            return None
        try:
            match value.function.name:
                case "_rebuild_tensor_v2" | "_rebuild_tensor_v3" | "_rebuild_tensor":
                    return None if _is_lazy(value) else self._ordinary(value)
                case "_rebuild_parameter" | "_rebuild_parameter_with_state":
                    inner = self._tensor(value.arguments[0])
                    return inner and replace(inner, requires_grad=bool(value.arguments[1]))
                case "_rebuild_from_type_v2":
                    return self._of_a_class(value)
                case _:
                    return None
        except _MISTAKES as error:
            raise BadCheckpoint(f"{self._where}: a tensor is not described as torch does it: {error}") from error

    def _ordinary(self, call: Call) -> TensorEntry:
        storage, first, sizes, strides = call.arguments[:4]
        if not isinstance(storage, Persistent):
            raise ValueError("it has no storage")
        _, kind, name, _, _ = storage.key
        stored = str(global_of(kind)).rpartition(".")[2]
        dtype = pieces.dtype_name(call.arguments[6]) if stored == "UntypedStorage" else _STORAGES[stored]
        if str(name) not in self._archive.storages:
            raise ValueError(f"its storage {name} is not in the archive")
        offset, length, checksum = self._archive.storages[str(name)]
        size = ITEM_SIZES[dtype]
        shape, steps, (start,) = pieces.integers(sizes), pieces.integers(strides), pieces.integers((first,))
        last = start + sum((count - 1) * step for count, step in zip(shape, steps, strict=True))
        if 0 not in shape and (last + 1) * size > length:
            raise ValueError(f"it reaches beyond its storage {name}")
        where = Bytes(
            self._archive.item.file, offset + start * size, steps, self._archive.little_endian, (checksum, start * size)
        )
        requires_grad = len(call.arguments) > 4 and call.arguments[4] is True
        return TensorEntry(shape, dtype, (Chunk((0,) * len(shape), shape, where),), requires_grad=requires_grad)

    def _of_a_class(self, call: Call) -> TensorEntry | None:
        function, kind, arguments, state = call.arguments[:4]
        name = str(global_of(kind)).rpartition(".")[2]
        if name == "ShardedTensor":
            return self._sharded(arguments, state)
        if name == "DTensor":
            return self._distributed(arguments, state)
        self._fsdp1 = self._fsdp1 or "_has_been_cloned" in pieces.attributes(state)
        made = global_of(function)
        return self._tensor(Call(made, tuple(arguments))) if made is not None else None

    def _sharded(self, arguments: Any, state: Any) -> TensorEntry:
        self._note(*pieces.group_of(state[2]))
        chunks = []
        for shard in state[0]:
            fields = pieces.attributes(shard)
            place = pieces.attributes(fields["metadata"])
            offsets, sizes = pieces.integers(place["shard_offsets"]), pieces.integers(place["shard_sizes"])
            chunks.append(self._chunk(fields["tensor"], offsets, sizes))
        shape = pieces.integers(pieces.attributes(state[1])["size"])
        return self._pieced(shape, pieces.dtype_name(arguments[1]), chunks, "ShardedTensor")

    def _distributed(self, arguments: Any, state: Any) -> TensorEntry:
        fields = pieces.attributes(state)
        shape = pieces.integers(arguments[2])
        spec = pieces.attributes(fields["_spec"])
        place = pieces.of_dtensor(spec, shape)
        self._note(place.rank, place.world_size)
        chunk = self._chunk(fields["_local_tensor"], place.offsets, place.sizes)
        return self._pieced(shape, pieces.dtype_name(arguments[1]), [chunk], "DTensor")

    def _chunk(self, local: Any, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Chunk:
        entry = self._tensor(local)
        if entry is None:
            raise ValueError("a shard without a tensor")
        if entry.shape != sizes and (entry.numel or 0 not in sizes):
            raise ValueError(f"a shard of shape {entry.shape} where one of {sizes} belongs")
        return Chunk(offsets, sizes, entry.chunks[0].where)

    def _pieced(self, shape: tuple[int, ...], dtype: str, chunks: list[Chunk], kind: str) -> TensorEntry:
        for chunk in chunks:
            if len(chunk.offsets) != len(shape) or any(
                first + size > whole_size
                for first, size, whole_size in zip(chunk.offsets, chunk.sizes, shape, strict=True)
            ):
                raise ValueError(f"a shard that reaches beyond the shape {shape}")
        return TensorEntry(shape, dtype, tuple(chunks), kind)

    def _note(self, rank: Any, world_size: Any) -> None:
        if isinstance(rank, int):
            self._rank = rank
        if isinstance(world_size, int):
            self._world_size = max(world_size, self._world_size or 0)


def _versions(attributes: Any) -> dict[Any, Any]:
    """The versions of its modules, which ``Module.state_dict`` sets on the dictionary that it makes."""
    versions = attributes.get("_metadata") if isinstance(attributes, dict) else None
    return versions if isinstance(versions, dict) else {}


def _is_lazy(call: Call) -> bool:
    """Whether its elements are other than the bytes: torch marks conjugated and negated ones, in the last argument."""
    return isinstance(call.arguments[-1], dict) and any(call.arguments[-1].get(mark) for mark in ("conj", "neg"))


def _plain(value: Any) -> ValueEntry:
    if value is None or isinstance(value, (*_PLAIN, dict, list, tuple)):
        return ValueEntry(value)
    if isinstance(value, Call) and value.function == _BYTES:
        match value.arguments:
            case (str(text), "latin1") if text.isascii() or max(text) < "\u0100":
                return ValueEntry(text.encode("latin-1"))
    return ValueEntry(made_by=_name(value))


def _name(value: Any) -> str:
    if isinstance(value, _PLAIN) or value is None:
        return repr(value)
    function = value.function if isinstance(value, Call) else global_of(value)
    return str(function) if function is not None else type(value).__name__
