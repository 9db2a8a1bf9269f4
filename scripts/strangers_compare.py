"""Compares two folders that a training left: tensors bit for bit, numbers exactly, norms within 1e-5."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NORM = re.compile(r"norm(?!al)", re.IGNORECASE)
PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".tar"}
NOISE = 1e-2
TOLERANCE = 1e-5
UNALIGNED = 1e-6
_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|nan|inf", re.IGNORECASE)


@dataclass
class Difference:
    """One value that is not the same after."""

    place: str
    text: str
    relative: float = math.inf
    norm: bool = False

    def rounding(self, clips: bool, noise: Collection[str] = (), unaligned: Collection[str] = ()) -> bool:
        """Whether the rounding of a norm explains it: of a norm itself, or of what active clipping scales by it.

        ``noise`` are parts of names of parameters whose gradients are rounding alone, which Adam makes whole steps of,
        and of differences of nearly equal numbers. ``unaligned`` are parts of names of what comes of matrices that are
        not aligned in FSDP1's flat parameters: some processors round their products in another way.
        """
        if self.relative <= UNALIGNED and any(name in self.place for name in unaligned):
            return True
        if clips and self.relative <= NOISE and any(name in self.place for name in noise):
            return True
        return self.relative <= TOLERANCE and (clips or self.norm)

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def compared(before: Path, after: Path, read: Callable[[Any], Any] = lambda value: value) -> list[Difference]:
    """All differences, those of numbers first. ``read`` gives what a reader makes of a value that ``before`` has."""
    names = [{str(p.relative_to(d)) for p in d.rglob("*") if p.is_file()} for d in (before, after)]
    found = [Difference(name, "not written after") for name in sorted(names[0] - names[1])]
    found += [Difference(name, "written only after") for name in sorted(names[1] - names[0])]
    for name in sorted(names[0] & names[1]):
        found += _file(name, before / name, after / name, read)
    return sorted(found, key=lambda d: not d.place.partition("#")[0].endswith(".json"))


def _file(name: str, old: Path, new: Path, read: Callable[[Any], Any]) -> Iterator[Difference]:
    if old.suffix == ".json":
        yield from _values(f"{name}#", read(json.loads(old.read_text())), json.loads(new.read_text()))
    elif old.suffix == ".jsonl":
        one, two = ([json.loads(text) for text in p.read_text().splitlines()] for p in (old, new))
        yield from _values(f"{name}#", read(one), two)
    elif old.name == ".metadata":
        yield from _values(f"{name}#", read(_consolidated(old.parent)), _consolidated(new.parent))
    elif old.suffix == ".distcp":
        return
    elif old.suffix in PICKLES:
        yield from _values(f"{name}#", read(_loaded(old)), _loaded(new))
    else:
        yield from _texts(name, old.read_bytes(), new.read_bytes())


def _texts(name: str, old: bytes, new: bytes) -> Iterator[Difference]:
    if old == new:
        return
    one, two = old.decode(errors="replace"), new.decode(errors="replace")
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", two):
        pair = next(((a, b) for a, b in zip(one.splitlines(), two.splitlines(), strict=False) if a != b), ("", ""))
        yield Difference(name, f"other text: {pair[0]!r} before, {pair[1]!r} after")
        return
    for row, (a, b) in enumerate(zip(one.splitlines(), two.splitlines(), strict=True)):
        for x, y in zip(_NUMBER.findall(a), _NUMBER.findall(b), strict=True):
            yield from _values(f"{name}#{row}:{a[:40] if NORM.search(a) else ''}", float(x), float(y))


def _loaded(path: Path) -> Any:
    import torch

    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)  # no mesh can be unpickled here
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # what a sharded tensor raises outside of its process group is of any class
        return Opaque(type(error).__name__)


def _consolidated(folder: Path) -> Any:
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    reader = FileSystemReader(folder)
    _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return {k: v for k, v in state.items() if isinstance(v, (torch.Tensor, dict, list, int, float, str))}


class Opaque:
    """A file that only its own process group can read."""

    def __init__(self, why: str) -> None:
        self.why = why


def _values(place: str, old: Any, new: Any) -> Iterator[Difference]:
    import torch

    if isinstance(old, Opaque) or isinstance(new, Opaque):
        return
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        yield from _tensors(place, old, new)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        one, two = ({str(k): v for k, v in table.items()} for table in (old, new))
        for key in sorted(set(one) ^ set(two)):
            yield Difference(f"{place}/{key}", "not there after" if key in one else "there only after")
        for key in one:
            if key in two:
                yield from _values(f"{place}/{key}", one[key], two[key])
    elif isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        if place.endswith("/params") and all(isinstance(name, str) for name in (*old, *new)):
            old, new = sorted(old), sorted(new)  # a group of parameters by name: its order says nothing
        if len(old) != len(new):
            yield Difference(place, f"{len(old)} values before, {len(new)} after")
        for index, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from _values(f"{place}/{index}", a, b)
    elif isinstance(old, float) and isinstance(new, float):
        if old != new and not (math.isnan(old) and math.isnan(new)):
            relative = abs(old - new) / max(abs(old), abs(new))
            yield Difference(place, f"{old!r} before, {new!r} after", relative, bool(NORM.search(place)))
    elif type(old) is not type(new):
        yield Difference(place, f"{type(old).__name__} before, {type(new).__name__} after")
    elif isinstance(old, (bool, int, str, bytes, type(None))) and old != new:
        yield Difference(place, f"{old!r} before, {new!r} after")


def _tensors(place: str, old: Any, new: Any) -> Iterator[Difference]:
    import torch

    if type(old) is not type(new) and torch.nn.Parameter not in (type(old), type(new)):
        if type(old) is torch.Tensor:
            yield Difference(place, f"a tensor before, {type(new).__name__} after")
        return
    if type(old) not in (torch.Tensor, torch.nn.Parameter):
        return
    old, new = old.detach(), new.detach()
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        yield Difference(place, f"{list(old.shape)} {old.dtype} before, {list(new.shape)} {new.dtype} after")
    elif not torch.equal(old.contiguous().view(-1).view(torch.uint8), new.contiguous().view(-1).view(torch.uint8)):
        a, b = old.double(), new.double()
        relative = ((a - b).abs().max() / torch.maximum(a.abs().max(), b.abs().max())).item()
        yield Difference(place, f"{int((old != new).sum())} of {old.numel()} numbers differ, {relative:.3g} relative",
                         relative if relative == relative else math.inf)  # fmt: skip
