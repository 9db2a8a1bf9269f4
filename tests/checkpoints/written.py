"""What the generators of fixtures/checkpoints have written, and the elements of what the readers found in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fsdp_migrate.checkpoints.entries import Bytes, Chunk, Key, TensorEntry
from fsdp_migrate.checkpoints.read import torch_save as torchfile
from tests.parity.cpu import fsdp1_on_cpu


def write(rank: int, world_size: int, directory: Path, generator: Callable[..., None], *arguments: Any) -> None:
    """Call a generator on this rank of the pool."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(), fsdp1_on_cpu():
        warnings.simplefilter("ignore")
        generator(rank, world_size, directory, *arguments)


def expected(root: Path, name: str) -> dict[Key, Any]:
    """The state of the checkpoint ``name`` in ``root``, as it was gathered in the run that saved it."""
    whole = torch.load(root.parent / "expected" / root.name / f"{name}.pt", weights_only=True)
    return dict(flattened(whole))


def flattened(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Values of nested dictionaries, lists and tuples, keyed as :mod:`fsdp_migrate.checkpoints.entries` keys them."""
    if isinstance(value, Mapping | list | tuple) and value:
        for part, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from flattened(inner, (*key, part))
    else:
        yield key, value


def assert_same(value: Any, wanted: Mapping[Key, Any]) -> None:
    """Nested ``value`` holds what ``wanted`` has under flat keys, bit for bit; empty dictionaries and lists apart.

    Keys count as text, as torch.distributed.checkpoint spells them.
    """
    held = {_text(key): one for key, one in flattened(value) if not _is_empty(one)}
    by_name = {_text(key): one for key, one in wanted.items() if not _is_empty(one)}
    assert held.keys() == by_name.keys()
    for key, one in held.items():
        if isinstance(one, torch.Tensor):
            assert one.dtype == by_name[key].dtype
            assert torch.equal(one, by_name[key].detach()), key
        else:
            assert repr(one) == repr(by_name[key]), key


def _text(key: Key) -> Key:
    return tuple(map(str, key))


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict | list) and not value


def elements(entry: TensorEntry) -> torch.Tensor:
    """The tensor that ``entry`` describes, from the bytes that it points to."""
    dtype = getattr(torch, entry.dtype)
    whole = torch.zeros(entry.shape, dtype=dtype)
    for chunk in entry.chunks:
        if chunk.numel:
            box = tuple(slice(first, first + size) for first, size in zip(chunk.offsets, chunk.sizes, strict=True))
            whole[box] = _part(chunk, dtype)
    return whole


def _part(chunk: Chunk, dtype: torch.dtype) -> torch.Tensor:
    where = chunk.where
    if not isinstance(where, Bytes):
        inner = torchfile.tensor_in(where)
        assert inner.shape == chunk.sizes
        assert getattr(torch, inner.dtype) == dtype
        return _part(inner.chunks[0], dtype)
    last = sum((size - 1) * stride for size, stride in zip(chunk.sizes, where.strides, strict=True))
    with where.file.open("rb") as stream:
        stream.seek(where.offset)
        data = bytearray(stream.read((last + 1) * dtype.itemsize))
    return torch.frombuffer(data, dtype=dtype).as_strided(chunk.sizes, where.strides)
