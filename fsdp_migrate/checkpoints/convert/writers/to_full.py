"""One file of ``torch.save`` with whole tensors, written one tensor at a time.

``torch.save`` takes tensors that are all in memory. Its format is an archive of a pickle and of one uncompressed member
per storage; here the pickle is made of stand-ins for tensors, and the storages follow as they are read.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.convert.state import CannotConvert, State, nested
from fsdp_migrate.checkpoints.convert.stream import TensorStream
from fsdp_migrate.checkpoints.entries import ITEM_SIZES, Key, TensorEntry, ValueEntry, spelled, strides_of, tensors

#: torch pickles with it, and its restricted reader of today takes no other.
_PROTOCOL = 2
#: torch.load(mmap=True) wants storages at multiples of it.
_ALIGNMENT = 64
_LOCAL_HEADER = 30
_ZIP64_EXTRA = 20
#: The extra field that torch pads with, which readers pass over.
_PADDING_ID = b"FB"
_STORAGES = {
    "bool": torch.BoolStorage,
    "uint8": torch.ByteStorage,
    "int8": torch.CharStorage,
    "int16": torch.ShortStorage,
    "float16": torch.HalfStorage,
    "bfloat16": torch.BFloat16Storage,
    "int32": torch.IntStorage,
    "float32": torch.FloatStorage,
    "int64": torch.LongStorage,
    "float64": torch.DoubleStorage,
    "complex64": torch.ComplexFloatStorage,
    "complex128": torch.ComplexDoubleStorage,
}


class _Storage:
    """Stands in the pickle for the storage ``number``."""

    def __init__(self, number: int, entry: TensorEntry) -> None:
        self.key = ("storage", _STORAGES.get(entry.dtype, torch.UntypedStorage), str(number), "cpu", entry.numel)
        if entry.dtype not in _STORAGES:
            self.key = (*self.key[:4], entry.nbytes)


class _Tensor:
    """Stands in the pickle for a contiguous tensor that fills a storage."""

    def __init__(self, storage: _Storage, entry: TensorEntry) -> None:
        self._storage = storage
        self._entry = entry

    def __reduce__(self) -> tuple[Any, ...]:
        shape = self._entry.shape
        arguments: tuple[Any, ...] = (self._storage, 0, shape, strides_of(shape), False, OrderedDict())
        if self._entry.dtype in _STORAGES:
            return torch._utils._rebuild_tensor_v2, arguments
        return torch._utils._rebuild_tensor_v3, (*arguments, getattr(torch, self._entry.dtype))


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> tuple[Any, ...] | None:
        return value.key if isinstance(value, _Storage) else None


def write(state: State, target: Path, stream: TensorStream) -> None:
    """Write the file ``target``, as ``torch.load`` reads it, with ``mmap=True`` and ``weights_only=True`` as well.

    Keys of a model that name the same elements of the source are tensors on one storage, as they were. Counters and the
    states of an optimizer never are: FSDP1 saves one ``step`` for all parameters of a flat parameter, and an optimizer
    that loads it so counts every step once for each of them.
    """
    numbers = _storages(state)
    stand_ins = {number: _Storage(number, _tensor(state, key)) for number, key in _first_keys(numbers).items()}

    def leaf(key: Key, entry: TensorEntry | ValueEntry) -> Any:
        return _Tensor(stand_ins[numbers[key]], entry) if isinstance(entry, TensorEntry) else entry.value

    data = io.BytesIO()
    try:
        _Pickler(data, _PROTOCOL).dump(nested(state, leaf))
    except RecursionError as error:
        raise CannotConvert("its dictionaries and lists are nested too deeply for a pickle") from error
    with stream.opened(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        root = target.name.split(".")[0] or "archive"
        _member(archive, f"{root}/data.pkl", data.tell(), [data.getbuffer()])
        _member(archive, f"{root}/byteorder", len(b"little"), [b"little"])
        for number, key in _first_keys(numbers).items():
            stretches = (stretch.data for stretch in stream.stretches(key))
            _member(archive, f"{root}/data/{number}", _tensor(state, key).nbytes, stretches)
        _member(archive, f"{root}/version", len(b"3\n"), [b"3\n"])


def _storages(state: State) -> dict[Key, int]:
    """The number of the storage that each tensor lies in."""
    states = [(*optimizer.prefix, "state") for optimizer in traits.optimizers(state.entries)]
    numbers: dict[Key, int] = {}
    known: dict[object, int] = {}
    for key, entry in tensors(state.entries):
        own = not entry.shape or not entry.numel or any(key[: len(start)] == start for start in states)
        elements = key if own else (entry.shape, entry.dtype, entry.chunks)
        numbers[key] = known.setdefault(elements, len(known))
    return numbers


def _first_keys(numbers: Mapping[Key, int]) -> dict[int, Key]:
    first: dict[int, Key] = {}
    for key, number in numbers.items():
        first.setdefault(number, key)
    return first


def _tensor(state: State, key: Key) -> TensorEntry:
    entry = state.entries[key]
    if not isinstance(entry, TensorEntry) or entry.dtype not in ITEM_SIZES:
        raise CannotConvert(f"{spelled(key)} has an unknown dtype: {entry}")
    return entry


def _member(archive: zipfile.ZipFile, name: str, size: int, parts: Iterable[bytes | memoryview]) -> None:
    info = zipfile.ZipInfo(name)
    info.file_size = size
    large = size > zipfile.ZIP64_LIMIT // 2
    start = archive.start_dir + _LOCAL_HEADER + len(name.encode()) + (_ZIP64_EXTRA if large else 0) + 4
    padding = -start % _ALIGNMENT
    info.extra = _PADDING_ID + padding.to_bytes(2, "little") + b"Z" * padding
    with archive.open(info, "w", force_zip64=large) as member:
        for part in parts:
            member.write(part)
