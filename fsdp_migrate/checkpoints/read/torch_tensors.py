"""Tensors as pickles of ``torch.save`` describe them: ordinary ones, parameters, ShardedTensor and DTensor."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from fsdp_migrate.checkpoints.entries import ITEM_SIZES, BadCheckpoint, Bytes, Chunk, TensorEntry, strides_of
from fsdp_migrate.checkpoints.read import pieces
from fsdp_migrate.checkpoints.read.archive import Archive
from fsdp_migrate.checkpoints.read.archive import described as place_of
from fsdp_migrate.checkpoints.read.unpickle import Call, Persistent, described, global_of

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
#: torch counts ranks in 32 bits.
_MOST_RANKS = 2**31
_MISTAKES = (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError)
#: What torch itself sets on the tensors of a model, and what FSDP1 does.
_TORCHS_OWN = frozenset({"_has_been_cloned", "_is_hf_initialized", "_in_backward_hooks"})


class Tensors:
    """Makes entries of the tensors of one archive.

    ``rank`` and ``world_size`` are those of the process that saved it, once a ShardedTensor or DTensor said so;
    ``fsdp1`` is true once a tensor has a mark that FSDP1 alone leaves. ``lost``: what the last tensor's entry lacks.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._where = place_of(archive.item)
        self.rank: int | None = None
        self.world_size: int | None = None
        self.fsdp1 = False
        self.lost = ""

    def of(self, value: Any) -> TensorEntry | None:
        """The tensor that ``value`` describes; None where it is not one, or one of a kind that has no entry.

        Raises :class:`BadCheckpoint` for one that torch would not describe so.
        """
        self.lost = ""
        return self._entry(value)

    def _entry(self, value: Any) -> TensorEntry | None:
        if not isinstance(value, Call) or value.function.module not in ("torch._utils", "torch._tensor"):
            return None
        try:
            match value.function.name:
                case "_rebuild_tensor_v2" | "_rebuild_tensor_v3" | "_rebuild_tensor":
                    return None if _is_lazy(value) else self._ordinary(value)
                case "_rebuild_parameter" | "_rebuild_parameter_with_state":
                    inner = self._entry(value.arguments[0])
                    self.lost = lost_attributes(value.arguments[3] if len(value.arguments) > 3 else None)
                    return inner and replace(inner, requires_grad=bool(value.arguments[1]))
                case "_rebuild_from_type_v2":
                    return self._of_a_class(value)
                case _:
                    return None
        except _MISTAKES as error:
            raise BadCheckpoint(f"{self._where}: a tensor description that torch does not write: {error}") from error

    def _ordinary(self, call: Call) -> TensorEntry:
        storage, first, sizes, strides = call.arguments[:4]
        if not isinstance(storage, Persistent):
            raise ValueError("it has no storage")
        _, kind, name, _, _ = storage.key
        stored = str(global_of(kind)).rpartition(".")[2]
        dtype = pieces.dtype_name(call.arguments[6]) if stored == "UntypedStorage" else _STORAGES[stored]
        if not isinstance(name, str) or name not in self._archive.storages:
            raise ValueError(f"its storage {described(name)} is not in the archive")
        offset, length, checksum = self._archive.storages[name]
        size = ITEM_SIZES.get(dtype)
        shape, steps, (start,) = pieces.integers(sizes), pieces.integers(strides), pieces.integers((first,))
        requires_grad = len(call.arguments) > 4 and call.arguments[4] is True
        if size is None:
            # A dtype that is newer than this tool: its bytes are all that is known.
            if steps != strides_of(shape) or start:
                raise ValueError(f"a view of {dtype}, whose size is unknown")
            where = Bytes(self._archive.item.file, offset, steps, self._archive.little_endian)
            chunk = Chunk((0,) * len(shape), shape, where)
            return TensorEntry(shape, dtype, (chunk,), requires_grad=requires_grad, stored=length)
        last = start + sum((count - 1) * step for count, step in zip(shape, steps, strict=True))
        if 0 not in shape and (last + 1) * size > length:
            raise ValueError(f"it extends beyond its storage {name}")
        where = Bytes(
            self._archive.item.file,
            offset + start * size,
            steps,
            self._archive.little_endian,
            None if checksum is None else (checksum, start * size),
        )
        return TensorEntry(shape, dtype, (Chunk((0,) * len(shape), shape, where),), requires_grad=requires_grad)

    def _of_a_class(self, call: Call) -> TensorEntry | None:
        function, kind, arguments, state = call.arguments[:4]
        name = str(global_of(kind)).rpartition(".")[2]
        if name == "ShardedTensor":
            return self._sharded(arguments, state)
        if name == "DTensor":
            return self._distributed(arguments, state)
        attributes = pieces.attributes(state)
        self.fsdp1 = self.fsdp1 or "_has_been_cloned" in attributes
        self.lost = lost_attributes(attributes, _TORCHS_OWN) or self.lost
        if name not in ("Tensor", "Parameter", "Buffer"):
            self.lost = f"it has the tensor class {name}, which no other format can store"
        made = global_of(function)
        return self._entry(Call(made, tuple(arguments))) if made is not None else None

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
        entry = self._entry(local)
        if entry is None:
            raise ValueError("a shard without a tensor")
        if entry.shape != sizes and (entry.numel or 0 not in sizes):
            raise ValueError(f"a shard of shape {entry.shape} instead of one of {sizes}")
        return Chunk(offsets, sizes, entry.chunks[0].where)

    def _pieced(self, shape: tuple[int, ...], dtype: str, chunks: list[Chunk], kind: str) -> TensorEntry:
        for chunk in chunks:
            if len(chunk.offsets) != len(shape) or any(
                first + size > whole_size
                for first, size, whole_size in zip(chunk.offsets, chunk.sizes, shape, strict=True)
            ):
                raise ValueError(f"a shard that extends beyond the shape {shape}")
        return TensorEntry(shape, dtype, tuple(chunks), kind)

    def _note(self, rank: Any, world_size: Any) -> None:
        if isinstance(rank, int):
            self.rank = rank
        if isinstance(world_size, int):
            if world_size >= _MOST_RANKS:
                raise ValueError(f"its number of ranks has {world_size.bit_length()} bits")
            self.world_size = max(world_size, self.world_size or 0)


def _is_lazy(call: Call) -> bool:
    """Whether its elements are other than the bytes: torch marks conjugated and negated ones, in the last argument."""
    return isinstance(call.arguments[-1], dict) and any(call.arguments[-1].get(mark) for mark in ("conj", "neg"))


def lost_attributes(attributes: Any, kept: Collection[str] = ()) -> str:
    """What is said of an object with other ``attributes`` than those that are ``kept``; "" without any."""
    names = sorted(map(described, attributes.keys() - kept)) if isinstance(attributes, dict) else []
    return f"it has attributes ({', '.join(names[:3])}), which no other format can store" if names else ""
