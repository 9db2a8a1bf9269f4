"""Files of safetensors, alone or several with an index: their headers, read by the library, and no tensor."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import safetensors

from fsdp_migrate.checkpoints.entries import BadCheckpoint, Bytes, Chunk, Entries, TensorEntry, strides_of
from fsdp_migrate.checkpoints.read.archive import first_bytes, whole

#: dtypes by the names that safetensors has for them.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
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


def read(files: Sequence[Path]) -> Entries:
    """The tensors in ``files``; each key is one name. An index among them says which file must hold which.

    Raises :class:`BadCheckpoint` for broken files, for a name in two files, and for an index that disagrees.
    """
    entries: Entries = {}
    homes: dict[str, str] = {}
    for file in files:
        if file.name.endswith(".json"):
            continue
        for name, entry in _read_file(file).items():
            if name in homes:
                raise BadCheckpoint(f"{file}: {name} is in {homes[name]} too")
            homes[name] = file.name
            entries[(name,)] = entry
    for index in (file for file in files if file.name.endswith(".json")):
        _check_index(index, homes)
    return entries


def _check_index(index: Path, homes: dict[str, str]) -> None:
    try:
        wanted = json.loads(index.read_bytes())["weight_map"]
        pairs = [(str(name), str(file)) for name, file in wanted.items()]
    except OSError as error:
        raise BadCheckpoint(f"{index}: could not read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(f"{index}: not an index of safetensors: {error}") from error
    for name, file in pairs:
        if homes.get(name) != file:
            raise BadCheckpoint(f"{index}: it says that {name} is in {file!r}, where it is not")


def _read_file(path: Path) -> dict[str, TensorEntry]:
    item = whole(path)
    try:
        header = json.loads(_checked_header(path, item.length))
        start = 8 + struct.unpack("<Q", first_bytes(item, 8))[0]
        header.pop("__metadata__", None)
        return {name: _entry(path, start, told) for name, told in header.items()}
    except (ValueError, KeyError, TypeError, struct.error, safetensors.SafetensorError) as error:
        raise BadCheckpoint(f"{path}: not a whole file of safetensors: {error}") from error


def _checked_header(path: Path, length: int) -> bytes:
    """The header, once the library has found it whole, every tensor within the file and none overlapping."""
    with safetensors.safe_open(path, framework="np"):
        size = struct.unpack("<Q", first_bytes(whole(path), 8))[0]
        return first_bytes(whole(path), min(length, 8 + size))[8:]


def _entry(path: Path, start: int, told: dict[str, object]) -> TensorEntry:
    shape, dtype = told["shape"], DTYPES[str(told["dtype"])]
    offsets = told["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise ValueError("a header that says nothing of shapes")
    sizes = tuple(shape)
    where = Bytes(path, start + offsets[0], strides_of(sizes))
    return TensorEntry(sizes, dtype, (Chunk((0,) * len(sizes), sizes, where),))
