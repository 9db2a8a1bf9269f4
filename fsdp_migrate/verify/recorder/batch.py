"""Digests of many small tensors together: what a step costs is the number of operations, not of elements."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .digest import BITS, BLOCK, Digested, Place, Range, of_block, samples_in_range, within


def is_small(local: torch.Tensor, place: Place) -> bool:
    """Whether the elements have their weights from one block, as :func:`digest_together` needs it."""
    if local.is_complex() or not isinstance(place, Range) or local.numel() != place.length or not place.length:
        return False
    return place.start // BLOCK == (place.start + place.length - 1) // BLOCK


@dataclass(frozen=True)
class _Plan:
    """What only depends on the places: lengths and last indices of the tensors, int64, and their samples."""

    lengths: torch.Tensor
    ends: torch.Tensor
    blocks: torch.Tensor
    which: tuple[tuple[int, ...], ...]
    sampled: torch.Tensor


@functools.lru_cache(maxsize=64)
def _plan(places: tuple[Range, ...], samples: tuple[bool, ...], device: torch.device) -> _Plan:
    lengths = torch.tensor([place.length for place in places])
    ends = lengths.cumsum(0)
    which, sampled = [], [torch.zeros(0, dtype=torch.int64)]
    for place, wanted, end in zip(places, samples, ends.tolist(), strict=True):
        positions, at = samples_in_range(place) if wanted else ((), sampled[0])
        which.append(positions)
        sampled.append(at + (end - place.length))
    blocks = torch.tensor([of_block(place.start // BLOCK) for place in places])
    found = (lengths, ends - 1, blocks, torch.cat(sampled))
    lengths, ends, blocks, indices = (tensor.to(device) for tensor in found)
    return _Plan(lengths, ends, blocks, tuple(which), indices)


def digest_together(
    locals_: Sequence[torch.Tensor], places: Sequence[Range], samples: Sequence[bool]
) -> list[Digested]:
    """As ``digest`` for each of the tensors, which are small, and of one dtype on one device."""
    with torch.no_grad():
        flat = torch.cat([local.detach().reshape(-1) for local in locals_])
        plan = _plan(tuple(places), tuple(samples), flat.device)
        bits = flat.view(BITS[flat.element_size()]).to(torch.int64) + 1
        each = _each if flat.device.type == "cpu" else _all
        digests, numbers = each(bits, flat.double(), places, plan)
        taken = bits[plan.sampled] - 1
        counts = [len(which) for which in plan.which]
        parts = taken.split(counts)  # type: ignore[no-untyped-call]
    dtype = str(flat.dtype).removeprefix("torch.")
    rows = zip((digests * plan.blocks).unbind(), numbers.unbind(), parts, plan.which, places, strict=True)
    return [
        Digested(digest, four, part if which else None, which, place.length, dtype)
        for digest, four, part, which, place in rows
    ]


def _each(
    bits: torch.Tensor, whole: torch.Tensor, places: Sequence[Range], plan: _Plan
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tensor by tensor: on the CPU an operation costs little, and passes over all elements cost most.

    Sums of bits by weights, int64, and rows as in :class:`Digested`, float64.
    """
    table, lengths = within(bits.device), [place.length for place in places]
    starts = [place.start % BLOCK for place in places]
    cut = zip(bits.split(lengths), starts, lengths, strict=True)  # type: ignore[no-untyped-call]
    digests = torch.stack([torch.dot(part, table[start : start + length]) for part, start, length in cut])
    parts = whole.split(lengths)  # type: ignore[no-untyped-call]
    squares = torch.stack([torch.dot(part, part) for part in parts])
    sums = torch.stack([part.sum() for part in parts])
    greatest = torch.stack([torch.maximum(*_ends(part)) for part in parts])
    wrong = torch.zeros_like(squares)
    if not bool(torch.isfinite(squares).all()):
        wrong = torch.stack([(~torch.isfinite(part)).sum().double() for part in parts])
    return digests, torch.stack([squares, sums, greatest, wrong], 1)


def _ends(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    least, most = torch.aminmax(part)
    return -least, most


def _all(
    bits: torch.Tensor, whole: torch.Tensor, places: Sequence[Range], plan: _Plan
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`_each`, in few operations and without waiting: other devices pay for each that is launched."""
    table = within(bits.device)
    starts = [place.start % BLOCK for place in places]
    weights = torch.cat([table[s : s + place.length] for s, place in zip(starts, places, strict=True)])
    # Sums wrap, so that the difference of two of them is that of the elements in between.
    running = (bits * weights).cumsum(0)[plan.ends]
    digests = torch.diff(running, prepend=running.new_zeros(1))
    wrong = (~torch.isfinite(whole)).double()
    columns = ((whole.square(), "sum"), (whole, "sum"), (whole.abs(), "max"), (wrong, "sum"))
    found = [torch.segment_reduce(data, how, lengths=plan.lengths) for data, how in columns]
    return digests, torch.stack(found, 1)
