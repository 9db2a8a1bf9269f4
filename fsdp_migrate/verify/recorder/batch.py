"""Digests of many small tensors on a device together: what counts is the number of operations that are launched."""

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


def digest_together(locals_: Sequence[torch.Tensor], places: Sequence[Range], samples: Sequence[bool]) -> Digested:
    """As ``digest`` for each of the tensors, which are small, and of one dtype on one device."""
    with torch.no_grad():
        flat = torch.cat([local.detach().reshape(-1) for local in locals_])
        plan = _plan(tuple(places), tuple(samples), flat.device)
        bits = flat.view(BITS[flat.element_size()]).to(torch.int64) + 1
        digests, numbers = _reduced(bits, flat.double(), places, plan)
        taken = bits[plan.sampled] - 1
    dtype = str(flat.dtype).removeprefix("torch.")
    return Digested(digests * plan.blocks, numbers, taken, plan.which, tuple(place.length for place in places), dtype)


def _reduced(
    bits: torch.Tensor, whole: torch.Tensor, places: Sequence[Range], plan: _Plan
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of bits by weights, int64, and rows as in :class:`Digested`, float64."""
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
