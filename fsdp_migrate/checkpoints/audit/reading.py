"""The second reading of a whole checkpoint, and of the elements of its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fsdp_migrate.checkpoints.audit import folder, headers, saved
from fsdp_migrate.checkpoints.audit.inventory import ODD, Disagrees, Leaf, Name, Part, Place, Tensor, count
from fsdp_migrate.checkpoints.audit.saved import Spread

#: Elements that are looked up at a time where they do not lie one behind the other.
_BLOCK = 2**18


@dataclass
class Inventory:
    """The leaves by their keys, and how many there are of each key.

    ``places`` has every part of a tensor, by its file and the byte where it starts, or where its archive does.
    """

    leaves: dict[Name, Leaf] = field(default_factory=dict)
    counts: Counter[Name] = field(default_factory=Counter)
    places: dict[tuple[Path, int], list[Part]] = field(default_factory=dict)

    def put(self, name: Name, leaf: Leaf) -> None:
        """Add a leaf; of odd keys the number alone counts."""
        self.counts[name] += 1
        if ODD not in name:
            self.leaves[name] = leaf


def of_folder(files: Sequence[Path]) -> Inventory:
    """The second reading of a folder of torch.distributed.checkpoint."""
    return _inventory([list(folder.leaves_of(files))])


def of_safetensors(files: Sequence[Path]) -> Inventory:
    """The second reading of files of safetensors."""
    return _inventory([list(headers.leaves_of(files))])


def of_ranks(files: Mapping[int, Path]) -> Inventory:
    """The second reading of the files of ranks, or of one file."""
    return _inventory([saved.leaves(files[rank]) for rank in sorted(files)])


def _inventory(ranks: Sequence[Sequence[tuple[Name, Leaf | Spread]]]) -> Inventory:
    found = Inventory()
    by_name: dict[Name, list[Leaf | Spread]] = {}
    for leaves in ranks:
        # Of a key that several ranks have there is one.
        found.counts |= Counter(name for name, _ in leaves if ODD in name)
        for name, leaf in leaves:
            for part in _parts(leaf):
                for byte in (part.place.start, part.place.item):
                    found.places.setdefault((part.place.file, byte), []).append(part)
            if ODD not in name:
                by_name.setdefault(name, []).append(leaf)
    for name, held in by_name.items():
        spread = [one for one in held if isinstance(one, Spread)]
        first = held[0]
        if spread and len(spread) < len(held):
            raise Disagrees(f"{name} is split in some files and whole in others")
        found.put(name, _joined(spread) if isinstance(first, Spread) else first)
    return found


def _parts(leaf: Leaf | Spread) -> Iterable[Part]:
    if isinstance(leaf, Spread):
        return (*leaf.boxes, *([leaf.local] if leaf.local is not None else []))
    return leaf.parts if isinstance(leaf, Tensor) else ()


def _joined(parts: Sequence[Spread]) -> Tensor:
    boxes = [box for part in parts for box in (part.boxes if part.local is None else (_boxed(part, parts),))]
    if len({(part.dtype, part.shape) for part in parts}) > 1:
        raise Disagrees("ranks that differ in the shape or dtype of a tensor")
    kept = tuple(box for box in boxes if count(box.sizes))
    return Tensor(parts[0].dtype, parts[0].shape, kept)


def _boxed(part: Spread, parts: Sequence[Spread]) -> Part:
    """The box of a DTensor's part: it starts where the parts of the coordinates before it end."""
    if part.local is None:
        raise Disagrees("a part without elements")
    first = [0] * len(part.shape)
    for dim in range(len(part.shape)):
        along = [place for place, split in part.splits if split == dim]
        sizes = {
            tuple(one.coordinates[place] for place in along): one.local.sizes[dim]
            for one in parts
            if one.local is not None
        }
        own = tuple(part.coordinates[place] for place in along)
        first[dim] = sum(size for coordinates, size in sizes.items() if coordinates < own)
    return Part(tuple(first), part.local.sizes, part.local.place)


def elements(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of all elements in C order, little-endian. Raises :class:`Disagrees` where one of them is nowhere."""
    if tensor.nbytes is not None:
        return _bytes(tensor.parts[0].place, tensor.nbytes)
    if len(tensor.parts) == 1 and tensor.parts[0].sizes == tensor.shape:
        return read(tensor.parts[0])
    size = tensor.parts[0].place.size if tensor.parts else 1
    held = np.empty((*tensor.shape, size), np.uint8)
    covered = np.zeros(tensor.shape, bool)
    for part in tensor.parts:
        box = tuple(slice(start, start + length) for start, length in zip(part.first, part.sizes, strict=True))
        held[box] = read(part).reshape(*part.sizes, size)
        covered[box] = True
    if not covered.all():
        raise Disagrees("elements that belong to no part")
    return held.reshape(-1)


def spans(tensor: Tensor) -> tuple[int, Callable[[int, int], bytes]]:
    """How many bytes :func:`elements` are, and what gives those from one on to another.

    They are read when they are asked for where a file has them as they are, and all at once anywhere else.
    """
    part = tensor.parts[0] if len(tensor.parts) == 1 else None
    if part is None or tensor.nbytes is not None or part.sizes != tensor.shape or part.place.swapped:
        return held_spans(elements(tensor))
    if not _is_contiguous(part):
        return held_spans(elements(tensor))
    place = part.place
    return count(part.sizes) * place.size, lambda first, end: _span(place, first, end)


def _span(place: Place, first: int, end: int) -> bytes:
    with place.file.open("rb", buffering=0) as stream:
        stream.seek(place.start + first)
        held = stream.read(end - first)
    if len(held) != end - first:
        raise Disagrees(f"{place.file}: it ends within a tensor")
    return held


def held_spans(held: npt.NDArray[np.uint8]) -> tuple[int, Callable[[int, int], bytes]]:
    """As :func:`spans`, of bytes in memory."""
    return held.size, lambda first, end: held[first:end].tobytes()


def read(part: Part, first: int = 0, number: int | None = None) -> npt.NDArray[np.uint8]:
    """The bytes of ``number`` elements of a part from ``first`` on, or of all."""
    place, total = part.place, count(part.sizes)
    number = total - first if number is None else number
    if first + number > total:
        raise Disagrees(f"{place.file}: {number} elements from {first}, of {total}")
    if not number:
        return np.empty(0, np.uint8)
    if _is_contiguous(part):
        held = _bytes(place, number * place.size, first * place.size)
    else:
        held = np.empty(number * place.size, np.uint8)
        for start, chosen in _strided(part, first, number):
            held[start * place.size : start * place.size + chosen.size] = chosen
    if place.swapped:
        held = held.reshape(-1, place.unit)[:, ::-1].reshape(-1)
    return held


def _strided(part: Part, first: int, number: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Block by block, elements of a part by the number of each, which gives its indexes and these its byte."""
    place = part.place
    last = sum((size - 1) * step for size, step in zip(part.sizes, place.strides, strict=True))
    mapped = np.memmap(place.file, np.uint8, "r", place.start, ((last + 1) * place.size,))
    for start in range(0, number, _BLOCK):
        numbers = np.arange(first + start, first + min(number, start + _BLOCK), dtype=np.int64)
        at = np.zeros_like(numbers)
        for size, step in zip(reversed(part.sizes), reversed(place.strides), strict=True):
            numbers, index = np.divmod(numbers, size)
            at += index * step
        yield start, np.asarray(mapped.reshape(-1, place.size)[at]).reshape(-1)


def _is_contiguous(part: Part) -> bool:
    step = 1
    for size, stride in zip(reversed(part.sizes), reversed(part.place.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _bytes(place: Place, number: int, after: int = 0) -> npt.NDArray[np.uint8]:
    held = np.fromfile(place.file, np.uint8, number, offset=place.start + after)
    if held.size != number:
        raise Disagrees(f"{place.file}: it ends within a tensor")
    return held
