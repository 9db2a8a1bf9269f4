"""The leaves of files of safetensors, from their headers' JSON."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdp_migrate.checkpoints.audit.inventory import Disagrees, Name, Part, Place, Tensor, count, item_size

_WORDS = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint", "C": "complex"}
_EIGHT = {"E4M3": "e4m3fn", "E8M0": "e8m0fnu", "E5M2": "e5m2", "E4M3FNUZ": "e4m3fnuz", "E5M2FNUZ": "e5m2fnuz"}


def leaves_of(files: Sequence[Path]) -> Iterator[tuple[Name, Tensor]]:
    """All tensors in ``files``; what ranks have written in parts is put together."""
    parts: dict[str, list[tuple[str, Part]]] = {}
    for file in files:
        if file.name.endswith(".json"):
            continue
        try:
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                # As many bytes as there are: a file that is none of safetensors says any length.
                header = json.loads(stream.read(min(length, file.stat().st_size)))
            told = (header.pop("__metadata__", None) or {}).get("DCP_SHARDING_INFO")
            starts = {name: tuple(info["saved_offsets"]) for name, info in json.loads(told or "{}").items()}
            for name, entry in header.items():
                dtype, shape, (first, end) = _dtype(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
                size = item_size(dtype) or 1
                steps = tuple(count(shape[place + 1 :]) for place in range(len(shape)))
                known = item_size(dtype) is not None
                place = Place(file, 8 + length + first, size, steps)
                if known and count(shape) * size != end - first:
                    raise ValueError(f"{name} has {end - first} bytes")
                if name in starts:
                    parts.setdefault(name, []).append((dtype, Part(starts[name], shape, place)))
                else:
                    box = Part((0,) * len(shape), shape, place)
                    yield (name,), Tensor(dtype, shape, (box,), None if known else end - first)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise Disagrees(f"{file}: a header that the second reader cannot read: {error!r}") from error
    for name, held in parts.items():
        ends = [tuple(a + b for a, b in zip(part.first, part.sizes, strict=True)) for _, part in held]
        yield (name,), Tensor(held[0][0], tuple(map(max, zip(*ends, strict=True))), tuple(part for _, part in held))


def _dtype(name: str) -> str:
    if name == "BOOL":
        return "bool"
    if name.startswith("F8_") and name[3:] in _EIGHT:
        return f"float8_{_EIGHT[name[3:]]}"
    told = re.fullmatch(r"(F|BF|I|U|C)(8|16|32|64)", name)
    return f"{_WORDS[told[1]]}{told[2]}" if told else name
