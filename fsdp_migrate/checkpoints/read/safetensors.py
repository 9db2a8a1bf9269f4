"""Files of safetensors, alone or several with an index: their headers, read by the library, and no tensor."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import safetensors

from fsdp_migrate.checkpoints.entries import (
    ITEM_SIZES,
    BadCheckpoint,
    Bytes,
    Chunk,
    Entries,
    TensorEntry,
    box,
    strides_of,
    unlike,
)
from fsdp_migrate.checkpoints.read.archive import first_bytes, whole
from fsdp_migrate.checkpoints.read.pieces import integers

Offsets: TypeAlias = tuple[int, ...]

#: dtypes by the names that safetensors has for them.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


_MISTAKES = (
    *(AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError),
    *(struct.error, safetensors.SafetensorError),
)
#: As the library has it.
_LARGEST_HEADER = 100_000_000


def read(files: Sequence[Path]) -> Entries:
    """The tensors in ``files``; each key is one name. An index among them says which file must hold which.

    Raises :class:`BadCheckpoint` for broken files, for a name in two files, and for an index that disagrees.
    """
    entries: Entries = {}
    homes: dict[str, str] = {}
    parts: dict[str, list[tuple[Offsets, TensorEntry]]] = {}
    for file in files:
        if file.name.endswith(".json"):
            continue
        found, places = _read_file(file)
        for name, entry in found.items():
            if name in places:
                parts.setdefault(name, []).append((places[name], entry))
            elif name in homes:
                raise BadCheckpoint(f"{file}: {name} is in {homes[name]} too")
            else:
                entries[(name,)] = entry
            homes[name] = file.name
    for name, pieces in parts.items():
        if (name,) in entries:
            raise BadCheckpoint(f"{files[0].parent}: {name} is whole in one file and split in others")
        entries[(name,)] = _joined(name, pieces, files[0].parent)
    for index in (file for file in files if file.name.endswith(".json")):
        _check_index(index, homes)
    return entries


def files_in_index(index: Path) -> frozenset[str]:
    """The names of the files that an index lists; none where it cannot be read, which :func:`read` reports."""
    try:
        return frozenset(file for _, file in _weight_map(index))
    except BadCheckpoint:
        return frozenset()


def _weight_map(index: Path) -> list[tuple[str, str]]:
    try:
        wanted = json.loads(first_bytes(whole(index), _LARGEST_HEADER))["weight_map"]
        return [(str(name), str(file)) for name, file in wanted.items()]
    except OSError as error:
        raise BadCheckpoint(f"{index}: could not read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(f"{index}: not an index of safetensors: {error}") from error


def _check_index(index: Path, homes: dict[str, str]) -> None:
    for name, file in _weight_map(index):
        if homes.get(name) != file:
            raise BadCheckpoint(f"{index}: it lists {name} in {file!r}, which does not contain it")


def _joined(name: str, pieces: list[tuple[Offsets, TensorEntry]], folder: Path) -> TensorEntry:
    """One tensor of its parts in the files of ranks; it ends where the last of them does, as torch reads it."""
    first = pieces[0][1]
    if any(
        (entry.dtype, len(entry.shape), len(offsets)) != (first.dtype, len(first.shape), len(first.shape))
        for offsets, entry in pieces
    ):
        raise BadCheckpoint(f"{folder}: the parts of {name} differ in dtype or dimensions")
    chunks, copies = unlike(Chunk(offsets, entry.shape, entry.chunks[0].where) for offsets, entry in pieces)
    ends = zip(*(tuple(end for _, end in box(chunk)) for chunk in chunks), strict=True)
    lengths = {offsets: entry.nbytes for offsets, entry in pieces}
    stored = None if first.stored is None else sum(lengths.values())
    try:
        return TensorEntry(tuple(map(max, ends)), first.dtype, chunks, "sharded", replicas=copies, stored=stored)
    except ValueError as error:
        raise BadCheckpoint(f"{folder}: the parts of {name} are {error}") from error


def _places(header: dict[str, object]) -> dict[str, Offsets]:
    """Where in its tensor each part starts, as torch's HuggingFaceStorageWriter notes it for sharded ones."""
    metadata = header.pop("__metadata__", None)
    told = metadata.get("DCP_SHARDING_INFO") if isinstance(metadata, dict) else None
    found = json.loads(told) if isinstance(told, str) else {}
    return {name: integers(info["saved_offsets"]) for name, info in found.items() if name in header}


def _read_file(path: Path) -> tuple[dict[str, TensorEntry], dict[str, Offsets]]:
    item = whole(path)
    try:
        header = json.loads(_checked_header(path, item.length), object_pairs_hook=_no_name_twice)
        start = 8 + struct.unpack("<Q", first_bytes(item, 8))[0]
        places = _places(header)
        return {name: _entry(path, start, told) for name, told in header.items()}, places
    except _MISTAKES as error:
        raise BadCheckpoint(f"{path}: not a complete file of safetensors: {error}") from error


def _checked_header(path: Path, length: int) -> bytes:
    """The header, once it is known to be whole, with every tensor within the file and none overlapping."""
    size = struct.unpack("<Q", first_bytes(whole(path), 8))[0]
    try:
        with safetensors.safe_open(path, framework="np"):
            return first_bytes(whole(path), min(length, 8 + size))[8:]
    except ModuleNotFoundError:
        # The library opens no file without numpy, which is an extra.
        if size > _LARGEST_HEADER:
            raise ValueError(f"a header of {size} bytes (at most {_LARGEST_HEADER} are allowed)") from None
    except safetensors.SafetensorError as error:
        # The library refuses dtypes that are newer than itself; the bytes of such a tensor can be carried all the same.
        if "unknown variant" not in str(error) or size > _LARGEST_HEADER:
            raise
    header = first_bytes(whole(path), min(length, 8 + size))[8:]
    _check_places(json.loads(header), length - 8 - size)
    return header


def _check_places(header: dict[str, dict[str, list[int]]], length: int) -> None:
    """Raise ValueError where the tensors do not lie one after the other and fill the ``length`` bytes of the file."""
    end = 0
    tensors = [told for name, told in header.items() if name != "__metadata__"]
    for told in tensors:
        shape, (first, after) = integers(told["shape"]), integers(told["data_offsets"])
        size = ITEM_SIZES.get(DTYPES.get(str(told["dtype"]), ""))
        if size is not None and math.prod(shape) * size != after - first:
            raise ValueError(f"a tensor of shape {shape} in {after - first} bytes")
    for first, after in sorted(told["data_offsets"] for told in tensors):
        if first != end or after < first:
            raise ValueError("tensors that overlap, or bytes between them")
        end = after
    if end != length:
        raise ValueError(f"{length} bytes of tensors, but the header says {end}")


def _no_name_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name that occurs twice in its header")
    return dict(pairs)


def _entry(path: Path, start: int, told: dict[str, object]) -> TensorEntry:
    name = str(told["dtype"])
    sizes, dtype = integers(told["shape"]), DTYPES.get(name, name)
    offsets = integers(told["data_offsets"])
    where = Bytes(path, start + offsets[0], strides_of(sizes))
    stored = None if name in DTYPES else offsets[1] - offsets[0]
    return TensorEntry(sizes, dtype, (Chunk((0,) * len(sizes), sizes, where),), stored=stored)
