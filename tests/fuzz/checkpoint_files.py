"""Files of checkpoints at random: those of ranks, safetensors in shards, and pickles changed in their operations."""

from __future__ import annotations

import io
import json
import pickletools
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

_MESHES: tuple[tuple[int, ...], ...] = ((2,), (3,), (2, 2), (1,))
_VALUES: tuple[Any, ...] = (0, 1, -1, 255, 2**31, 2**63, -(2**40), 10**5000, "", "torch", "data", "model", 1.5, b"x")


def of_ranks(rng: random.Random) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of all ranks of a mesh, and the state that they hold together."""
    mesh = rng.choice(_MESHES)
    count = torch.Size(mesh).numel()
    whole: dict[str, Any] = {}
    ranks: list[dict[str, Any]] = [{} for _ in range(count)]
    for number in range(rng.randrange(1, 4)):
        name = f"layers.{number}.weight"
        shape = [rng.randrange(1, 7) for _ in range(rng.randrange(1, 3))]
        whole[name] = torch.randn(shape)
        placements = tuple(rng.choice([Replicate(), *map(Shard, range(len(shape)))]) for _ in mesh)
        for rank, held in enumerate(ranks):
            held[name] = _distributed(whole[name], mesh, placements, rank)
    if rng.random() < 0.5:
        whole["epoch"] = rng.choice((3, "text", None, [1, 2], torch.arange(3)))
        for held in ranks:
            held["epoch"] = whole["epoch"]
    files = {}
    for rank, held in enumerate(ranks):
        data = io.BytesIO()
        torch.save(held, data)
        files[f"model_world_size_{count}_rank_{rank}.pt"] = data.getvalue()
    return files, whole


def _distributed(whole: torch.Tensor, mesh: tuple[int, ...], placements: tuple[Any, ...], rank: int) -> DTensor:
    """What the rank has of a tensor, without a process group."""
    ranks = torch.arange(torch.Size(mesh).numel()).reshape(mesh)
    made = DeviceMesh("cpu", ranks, _init_backend=False, _rank=rank)
    place = [int(one) for one in (ranks == rank).nonzero()[0]]
    local = whole
    for placement, size, index in zip(placements, mesh, place, strict=True):
        if isinstance(placement, Shard):
            parts = local.chunk(size, placement.dim)
            local = parts[index] if index < len(parts) else local.narrow(placement.dim, 0, 0)
    spec = DTensorSpec(made, placements, tensor_meta=TensorMeta(whole.shape, whole.stride(), whole.dtype))
    return DTensor(local.clone(), spec, requires_grad=False)


def shards(rng: random.Random, one: Callable[[random.Random], bytes]) -> dict[str, bytes]:
    """Files of safetensors with an index that is right, or wrong in a name, a file or its form."""
    count = rng.randrange(1, 4)
    files = {f"model-{number + 1:05}-of-{count:05}.safetensors": one(rng) for number in range(count)}
    homes: dict[str, Any] = {}
    for name, data in files.items():
        (length,) = struct.unpack("<Q", data[:8])
        homes |= dict.fromkeys(set(json.loads(data[8 : 8 + length])) - {"__metadata__"}, name)
    if rng.random() < 0.3:
        homes[rng.choice([*homes, "w"])] = rng.choice(
            ("../../etc/passwd", "/etc/passwd", "", None, 5, "a\0b", "x" * 300)
        )
    index: Any = {"metadata": {}, "weight_map": homes}
    index = rng.choice((index, index, index, index, homes, [index], None, {"weight_map": [homes]}))
    text = json.dumps(index)
    if rng.random() < 0.1:
        text = text[: rng.randrange(len(text) + 1)] or "[" * rng.randrange(10**5)
    return {**files, "model.safetensors.index.json": text.encode()}


def restructured(rng: random.Random, data: bytes) -> bytes:
    """A pickle, or the ``data.pkl`` of an archive that stays whole, with a few operations changed."""
    if not data.startswith(b"PK\x03\x04"):
        return _operations(rng, data)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as after:
        for info in before.infolist():
            held = before.read(info)
            if info.filename.endswith("data.pkl"):
                held = _operations(rng, held)
            elif rng.random() < 0.1:
                held = held[: rng.randrange(len(held) + 1)]
            after.writestr(zipfile.ZipInfo(info.filename), held)
    return made.getvalue()


def _operations(rng: random.Random, data: bytes) -> bytes:
    try:
        starts = [place for _, _, place in pickletools.genops(data) if place is not None]
    except ValueError:
        return data
    pieces = [data[first:after] for first, after in zip(starts, [*starts[1:], len(data)], strict=True)]
    for _ in range(rng.randrange(1, 4)):
        here, there = rng.randrange(len(pieces)), rng.randrange(len(pieces))
        match rng.randrange(5):
            case 0:
                del pieces[here : here + rng.choice((1, 1, 2, 5))]
            case 1:
                pieces.insert(here, pieces[there])
            case 2:
                pieces[here], pieces[there] = pieces[there], pieces[here]
            case 3:
                pieces[here : here + 1] = pieces[there : there + rng.randrange(1, 8)]
            case _:
                pieces[here] = _constant(rng)
        pieces = pieces or [b"N"]
    return b"".join(pieces)


def _constant(rng: random.Random) -> bytes:
    value = rng.choice(_VALUES)
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value)) + value.encode()
    if isinstance(value, int):
        # Python spells no number of more than 4,300 digits.
        spelled = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8b" + struct.pack("<I", len(spelled)) + spelled
    return rng.choice((b"N", b"\x88", b"\x89", b")", b"]", b"}", b"0", b"2", b"("))
