"""Checkpoints at random: their structure, their files, and bytes of these that are wrong.

A case is a zip archive: the files of a checkpoint, and :data:`EXPECTED`, the state that is in it, where that is known.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import random
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from tests.fuzz import checkpoint_files

EXPECTED = "expected.pt"
#: Is in the archive of a checkpoint whose tensors have gaps, or two values for an element.
REFUSED = "refused"
_DTYPES = (
    *(torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16),
)
_WORDS = ("model", "optimizer", "weight", "bias", "layers", "0", "state", "exp_avg", "step", "param_groups", "params")
_ODD = (
    "",
    ".",
    "a.b",
    "ü",
    "\n",
    "x" * 300,
    "[0]",
    "__class__",
    "{}",
    "'",
    '"',
    "/",
    "..",
    "_metadata",
    "\u2028",
    "%s",
)


def tensor(rng: random.Random) -> torch.Tensor:
    """A small tensor of some dtype, shape and layout, with bytes at random."""
    dtype = rng.choice(_DTYPES)
    shape = tuple(rng.choice((0, 1, 1, 2, 3, 5)) for _ in range(rng.randrange(0, 4)))
    count = int(torch.Size(shape).numel())
    if dtype is torch.bool:
        made = torch.tensor([rng.random() < 0.5 for _ in range(count)], dtype=dtype).reshape(shape)
    else:
        data = bytearray(rng.randbytes(max(1, count) * dtype.itemsize))
        made = torch.frombuffer(data, dtype=dtype)[:count].clone().reshape(shape)
    layout = rng.randrange(8)
    if layout == 0 and made.dim() > 1:
        made = made.transpose(0, 1)
    elif layout == 1 and made.dim() and made.shape[0] > 1:
        made = made[1:]
    elif layout == 2 and made.dim():
        made = made.expand(2, *made.shape)
    elif layout == 3 and dtype.is_floating_point and dtype.itemsize > 1:
        made = made.requires_grad_()
    elif layout == 4 and dtype.is_floating_point and dtype.itemsize > 1:
        made = torch.nn.Parameter(made)
    elif layout == 5 and made.dim() and made.shape[0] > 2:
        made = made[::2]
    elif layout == 6 and dtype is torch.complex64:
        made = made.conj()
    return made


def value(rng: random.Random, depth: int) -> Any:
    """Anything that a state may have in it."""
    kind = rng.randrange(18 if depth else 9)
    if kind < 6:
        return tensor(rng)
    if kind < 9:
        return rng.choice(
            (
                1,
                0,
                -1,
                True,
                None,
                1.5,
                float("inf"),
                float("nan"),
                -0.0,
                "text",
                "",
                b"bytes",
                2**70,
                1j,
                torch.bfloat16,
            )
            + (torch.device("cpu"), torch.Size([2, 3]), (), [], {}, "a\0b", "\udc80", OrderedDict(), (1, (2, "x")))
        )
    if kind < 11:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind < 12:
        return tuple(value(rng, depth - 1) for _ in range(rng.randrange(4)))
    if kind < 13:
        return OrderedDict((key(rng), value(rng, depth - 1)) for _ in range(rng.randrange(4)))
    return {key(rng): value(rng, depth - 1) for _ in range(rng.randrange(5))}


def key(rng: random.Random) -> Any:
    """The key of an entry."""
    kind = rng.randrange(20)
    if kind < 12:
        return ".".join(rng.choice(_WORDS) for _ in range(rng.randrange(1, 4)))
    if kind < 15:
        return rng.choice(_ODD)
    if kind < 18:
        return rng.randrange(5)
    return rng.choice((None, True, 1.0, b"k", ("a", 0), ("a", 1), torch.Size([1]), -1, 2**65))


def model_like(rng: random.Random) -> dict[str, Any]:
    """A state such as training programs save."""
    names = [f"layers.{number}.{part}" for number in range(rng.randrange(1, 4)) for part in ("weight", "bias")]
    weights: dict[str, torch.Tensor] = {name: torch.randn(rng.randrange(1, 4), rng.randrange(1, 5)) for name in names}
    if rng.random() < 0.3:
        weights["tied.weight"] = weights[names[0]]
    if rng.random() < 0.3:
        weights["view"] = weights[names[0]][:1]
    state: dict[str, Any] = {"model": weights} if rng.random() < 0.7 else dict(weights)
    if "model" in state and rng.random() < 0.6:
        inner = {
            name: {"exp_avg": torch.randn_like(weight), "step": torch.tensor(3.0)} for name, weight in weights.items()
        }
        group = {"lr": 0.1, "betas": (0.9, 0.999), "params": list(weights), "amsgrad": False}
        state["optimizer"] = {"state": inner, "param_groups": [group]}
    if rng.random() < 0.5:
        state[key(rng)] = value(rng, 2)
    return state


def state(rng: random.Random) -> Any:
    """A state of either kind."""
    torch.manual_seed(rng.randrange(2**31))
    if rng.random() < 0.4:
        return model_like(rng)
    return {key(rng): value(rng, 2) for _ in range(rng.randrange(1, 6))}


def packed(files: Mapping[str, bytes]) -> bytes:
    """One archive of all ``files``."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return data.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    """The files of an archive of :func:`packed`."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def structured(rng: random.Random) -> bytes:
    """A checkpoint that is right, or wrong in what its metadata says about its tensors."""
    match rng.randrange(8):
        case 0 | 1:
            return packed(_folder(rng))
        case 2:
            return packed({"model.safetensors": _safetensors(rng)})
        case 3:
            return packed(checkpoint_files.shards(rng, _safetensors))
        case 4:
            files, whole = checkpoint_files.of_ranks(rng)
            return packed({**files, EXPECTED: _saved(whole)})
        case 5 if rng.random() < 0.4:
            return packed({"model.pt": _saved(state(rng), archive=False)})
        case _:
            return packed({"model.pt": _saved(state(rng))})


def broken(rng: random.Random) -> bytes:
    """A checkpoint with one to five changes of its bytes, or of the operations of its pickles."""
    files = {name: data for name, data in unpacked(structured(rng)).items() if name not in (EXPECTED, REFUSED)}
    change = rng.choice((_changed, _changed, checkpoint_files.restructured))
    for _ in range(rng.randrange(1, 6) if change is _changed else 1):
        name = rng.choice(list(files))
        files[name] = change(rng, files[name])
    return packed(files)


def _saved(held: Any, archive: bool = True) -> bytes:
    data = io.BytesIO()
    torch.save(held, data, _use_new_zipfile_serialization=archive)
    return data.getvalue()


def _safetensors(rng: random.Random) -> bytes:
    kinds = {"F32": 4, "BF16": 2, "I64": 8, "U8": 1, "F8_E4M3": 1, "BOOL": 1, "F4": 0.5, "ODD": 3}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if rng.random() < 0.5 else {}
    data = b""
    for _ in range(rng.randrange(5)):
        kind, shape = rng.choice(list(kinds)), [rng.randrange(4) for _ in range(rng.randrange(3))]
        count = int(torch.Size(shape).numel() * kinds[kind])
        start = len(data) + rng.choice((0, 0, 0, 0, 0, 0, 1, -1))
        data += bytes(rng.choice((0, 1)) for _ in range(count)) if kind == "BOOL" else rng.randbytes(count)
        header[str(key(rng))] = {"dtype": kind, "shape": shape, "data_offsets": [start, start + count]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def _folder(rng: random.Random) -> dict[str, bytes]:
    """A folder of torch.distributed.checkpoint whose tensors are cut into boxes, some of which are missing or wrong."""
    entries: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    data = {f"__{rank}_0.distcp": b"" for rank in range(rng.randrange(1, 3))}
    expected: dict[str, Any] = {}
    is_whole = True

    def put(held: bytes, index: MetadataIndex) -> None:
        name = rng.choice(list(data))
        places[index] = _StorageInfo(name, len(data[name]), len(held))
        data[name] += held

    for number in range(rng.randrange(1, 4)):
        name = f"model.layers.{number}.weight" if rng.random() < 0.8 else str(key(rng)) or "empty"
        whole = torch.randn(rng.randrange(1, 7), rng.randrange(1, 5))
        expected[name] = torch.full_like(whole, torch.nan)
        chunks = []
        for box in _boxes(rng, tuple(whole.shape)):
            offsets = torch.Size([start for start, _ in box])
            sizes = torch.Size([size for _, size in box])
            index = MetadataIndex(name, offsets, len(chunks))
            if index in places:
                # One place for two boxes from one element on, which metadata cannot tell apart.
                chunks.append(ChunkStorageMetadata(offsets, sizes))
                continue
            part = whole[tuple(slice(start, start + size) for start, size in box)].clone()
            if rng.random() < 0.03:
                part += 1
            there = expected[name][tuple(slice(start, start + size) for start, size in box)]
            is_whole &= bool((there.isnan() | (there == part)).all())
            there.copy_(part)
            chunks.append(ChunkStorageMetadata(offsets, sizes))
            put(_saved(part), index)
        is_whole &= not expected[name].isnan().any()
        properties = TensorProperties(whole.dtype)
        entries[name] = TensorStorageMetadata(properties, whole.size(), chunks)
    if rng.random() < 0.5:
        expected["epoch"] = rng.choice((1, "text", None, [1, 2], {"a": (1,)}))
        entries["epoch"] = BytesStorageMetadata()
        put(_saved(expected["epoch"]), MetadataIndex("epoch"))
    planner = {name: tuple(name.split(".", 1)) for name in entries} if rng.random() < 0.7 else None
    metadata = Metadata(entries, planner, places)
    known = {EXPECTED: _saved(expected)} if is_whole else {REFUSED: b""}
    return {".metadata": pickle.dumps(metadata), **data, **known}


def _boxes(rng: random.Random, shape: tuple[int, ...]) -> list[tuple[tuple[int, int], ...]]:
    """Boxes that fill ``shape``, or nearly: some are left out, made larger, or there twice."""
    cuts = []
    for size in shape:
        edges = sorted({0, size, *(rng.randrange(size + 1) for _ in range(rng.randrange(3)))})
        cuts.append([(start, end - start) for start, end in itertools.pairwise(edges)])
    boxes: list[tuple[tuple[int, int], ...]] = list(itertools.product(*cuts))
    kind = rng.randrange(10)
    if kind == 0 and len(boxes) > 1:
        boxes.pop(rng.randrange(len(boxes)))
    elif kind == 1:
        boxes.append(rng.choice(boxes))
    elif kind == 2:
        starts = [rng.randrange(size) for size in shape]
        boxes.append(
            tuple((start, rng.randrange(1, size - start + 1)) for start, size in zip(starts, shape, strict=True))
        )
    elif kind == 3:
        rng.shuffle(boxes)
    return boxes


def _changed(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    end = min(len(data), place + rng.choice((1, 1, 2, 4, 8, 50)))
    match rng.randrange(6):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + data[end:]
        case 2:
            return (
                data[:place]
                + rng.choice((b"\xff" * 8, b"\0" * 8, b"0", b".", b"R", b"\x80\x02", b"PK\5\6"))
                + data[end:]
            )
        case 3:
            other = rng.randrange(len(data) + 1)
            return data[:place] + data[other : other + 60] + data[end:]
        case _:
            return data[:place] + rng.randbytes(end - place) + data[end:]
