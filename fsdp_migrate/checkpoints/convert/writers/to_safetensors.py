"""The model as files of safetensors of limited size, with the index that says which tensor is in which."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.convert.stream import TensorStream
from fsdp_migrate.checkpoints.entries import ITEM_SIZES, Key, TensorEntry, spelled, tensors
from fsdp_migrate.checkpoints.read.safetensors import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: Readers of safetensors map tensors at multiples of eight bytes.
_ALIGNMENT = 8


@dataclass(frozen=True)
class _Shard:
    name: str
    keys: tuple[Key, ...]


def write(state: State, target: Path, stream: TensorStream, shard_size: int) -> None:
    """Write the folder ``target``; every entry of ``state`` is a tensor, under a key that is its name.

    A file takes ``shard_size`` bytes at most, or a single tensor that is larger. The library writes whole files from
    memory alone, so the format, a JSON of offsets before the elements, is written here.
    """
    entries = dict(tensors(state.entries))
    for key, entry in entries.items():
        # torch's names are in lower case; those of a file of safetensors that is newer than this tool are its own.
        if entry.dtype not in _NAMES and (entry.stored is None or entry.dtype.islower()):
            raise CannotConvert(f"{spelled(key)} is {entry.dtype}, which safetensors do not support: use --to full")
    target.mkdir(exist_ok=True)
    shards = list(_shards(entries, shard_size))
    for shard in shards:
        _write_shard(target / shard.name, {key: entries[key] for key in shard.keys}, stream)
    if len(shards) > 1:
        total = sum(entry.nbytes for entry in entries.values())
        homes = {spelled(key): shard.name for shard in shards for key in shard.keys}
        index = {"metadata": {"total_size": total}, "weight_map": homes}
        with stream.opened(target / "model.safetensors.index.json") as file:
            file.write(json.dumps(index, indent=2).encode())


def _shards(entries: dict[Key, TensorEntry], shard_size: int) -> Iterator[_Shard]:
    parts: list[list[Key]] = [[]]
    held = 0
    for key, entry in entries.items():
        if parts[-1] and held + entry.nbytes > shard_size:
            parts.append([])
            held = 0
        parts[-1].append(key)
        held += entry.nbytes
    for number, keys in enumerate(parts, 1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors" if len(parts) > 1 else "model.safetensors"
        yield _Shard(name, tuple(keys))


def _write_shard(path: Path, entries: dict[Key, TensorEntry], stream: TensorStream) -> None:
    # Large elements first, so that all lie at multiples of their size.
    order = sorted(entries, key=lambda key: (-ITEM_SIZES.get(entries[key].dtype, 1), spelled(key)))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for key in order:
        entry = entries[key]
        ends = [offset, offset + entry.nbytes]
        header[spelled(key)] = {
            "dtype": _NAMES.get(entry.dtype, entry.dtype),
            "shape": list(entry.shape),
            "data_offsets": ends,
        }
        offset += entry.nbytes
    data = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    data += b" " * (-len(data) % _ALIGNMENT)
    with stream.opened(path) as file:
        file.write(struct.pack("<Q", len(data)) + data)
        for key in order:
            stream.copy(key, file)
