"""A digest of a tensor's bits that does not depend on how the tensor is sharded.

With the raw bits ``b_i`` of the element at row-major index ``i`` of the whole tensor, the digest is the sum over all
``i`` of ``(b_i + 1) * w(i)`` modulo ``2 ** 64``, where ``w(i)`` is an odd hash of ``i``. Integer addition is
associative, so ranks digest what they hold and the parts are added up later, without any communication in the run.
Equal digests mean equal bits, but for one pair of tensors in ``2 ** 64``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

BLOCK = 1 << 16
_CHUNK = 1 << 22
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Elements of a tensor of which the bits themselves are recorded, evenly spaced, the first and the last among them.
SAMPLES = 16
_NO_SAMPLES: tuple[tuple[int, ...], torch.Tensor] = ((), torch.zeros(0, dtype=torch.int64))


@dataclass(frozen=True)
class Range:
    """Local elements that are neighbours in the whole tensor: ``length`` of them from row-major index ``start``."""

    start: int
    length: int
    numel: int


@dataclass(frozen=True)
class Grid:
    """Local elements at every combination of the indices in ``axes``, one int64 tensor for each dimension."""

    axes: tuple[torch.Tensor, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())

    def indices(self) -> torch.Tensor:
        """Row-major indices of the local elements in the whole tensor; int64, one dimension."""
        total = torch.zeros((), dtype=torch.int64)
        stride = self.numel
        for axis, size in zip(self.axes, self.shape, strict=True):
            stride //= max(size, 1)
            total = total[..., None] + axis * stride
        return total.reshape(-1)


Place = Range | Grid


@dataclass(frozen=True)
class Digested:
    """One tensor or several of one dtype, kept on their device so that nothing waits before the end of the step.

    ``digests``: int64, one each. ``numbers``: float64, a row each: sum of squares, sum, greatest magnitude and count of
    non-finite elements. ``samples``: int64, of all tensors, the bits at the positions ``which`` of
    :func:`sample_indices`.
    """

    digests: torch.Tensor
    numbers: torch.Tensor
    samples: torch.Tensor
    which: tuple[tuple[int, ...], ...]
    numels: tuple[int, ...]
    dtype: str


def digest(local: torch.Tensor, place: Place, samples: bool = True) -> Digested:
    """Digest the elements of ``local``, any dtype and device, which lie at ``place`` in the whole tensor.

    A complex number is digested as its two parts, which are neighbours.
    """
    with torch.no_grad():
        numel, dtype = local.numel(), str(local.dtype).removeprefix("torch.")
        local = local.detach()
        if local.is_complex():
            local, place = torch.view_as_real(local.resolve_conj()), _of_parts(place)
        flat = local.reshape(-1)
        bits = flat.view(BITS[flat.element_size()])
        if isinstance(place, Range):
            value = _range_digest(bits, place.start)
            which, at = samples_in_range(place) if samples else _NO_SAMPLES
        else:
            indices = place.indices().to(bits.device)
            value = _indexed_digest(bits, indices)
            which, at = _samples_in_grid(indices, place.numel) if samples else _NO_SAMPLES
        taken = bits[at.to(bits.device)].to(torch.int64)
        return Digested(value[None], _numbers(flat)[None], taken, (which,), (numel,), dtype)


def _of_parts(place: Place) -> Place:
    if isinstance(place, Range):
        return Range(2 * place.start, 2 * place.length, 2 * place.numel)
    return Grid((*place.axes, torch.arange(2)), (*place.shape, 2))


def _range_digest(bits: torch.Tensor, start: int) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    length = bits.numel()
    done = 0
    while done < length:
        block, offset = divmod(start + done, BLOCK)
        blocks = min((length - done) // BLOCK, _CHUNK // BLOCK) if offset == 0 else 0
        if blocks:
            part = bits[done : done + blocks * BLOCK].view(blocks, BLOCK).to(torch.int64) + 1
            total = total + (_times(part, within(bits.device)) * _of_blocks(block, blocks, bits.device)).sum()
            done += blocks * BLOCK
        else:
            size = min(BLOCK - offset, length - done)
            part = bits[done : done + size].to(torch.int64) + 1
            total = total + _times(part[None], within(bits.device)[offset : offset + size])[0] * of_block(block)
            done += size
    return total


def _times(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    # Devices other than the CPU have no matrix product of integers.
    return torch.mv(rows, weights) if rows.device.type == "cpu" else (rows * weights).sum(1)


def _indexed_digest(bits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    if not bits.numel():
        return torch.zeros((), dtype=torch.int64, device=bits.device)
    blocks = _hash(torch.div(indices, BLOCK, rounding_mode="floor") + BLOCK) | 1
    return ((bits.to(torch.int64) + 1) * within(bits.device)[indices % BLOCK] * blocks).sum()


@functools.cache
def within(device: torch.device) -> torch.Tensor:
    """The weight of each element in its block."""
    return (_hash(torch.arange(BLOCK)) | 1).to(device)


def _of_blocks(first: int, count: int, device: torch.device) -> torch.Tensor:
    return (_hash(torch.arange(first, first + count) + BLOCK) | 1).to(device)


@functools.lru_cache(maxsize=4096)
def of_block(block: int) -> int:
    """What the weights of one block are multiplied with."""
    return int(_hash(torch.tensor([block + BLOCK])) | 1)


def _hash(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64; its constants, as signed integers."""
    x = x * -7046029254386353131
    x = (x ^ _shifted(x, 30)) * -4658895280553007687
    x = (x ^ _shifted(x, 27)) * -7723592293110705685
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    # Right shifts of int64 fill with the sign; the mask makes them those of an unsigned integer.
    return (x >> by) & ((1 << (64 - by)) - 1)


def spread(place: Place, seed: int) -> torch.Tensor:
    """A number from -1 to 1 for each element at ``place``, by its index in the whole tensor and ``seed``; float64."""
    indices = torch.arange(place.start, place.start + place.length) if isinstance(place, Range) else place.indices()
    return (_hash(indices + (seed << 40)) >> 11).double() / 2.0**52


def _numbers(flat: torch.Tensor) -> torch.Tensor:
    if not flat.numel():
        return torch.zeros(4, dtype=torch.float64, device=flat.device)
    totals = torch.zeros(4, dtype=torch.float64, device=flat.device)
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].double()
        greatest = part.abs().max()
        totals[0] += torch.dot(part, part)
        totals[1] += part.sum()
        totals[2] = torch.maximum(totals[2], greatest)
        totals[3] += part.numel() - torch.isfinite(part).sum()
    return totals


def sample_indices(numel: int) -> list[int]:
    """Row-major indices of the elements whose bits are recorded."""
    if numel <= SAMPLES:
        return list(range(numel))
    return [position * (numel - 1) // (SAMPLES - 1) for position in range(SAMPLES)]


@functools.lru_cache(maxsize=4096)
def samples_in_range(place: Range) -> tuple[tuple[int, ...], torch.Tensor]:
    """Positions among the samples, and where these are in the local elements."""
    end = place.start + place.length
    mine = [(k, i - place.start) for k, i in enumerate(sample_indices(place.numel)) if place.start <= i < end]
    return tuple(k for k, _ in mine), torch.tensor([i for _, i in mine], dtype=torch.int64)


def _samples_in_grid(indices: torch.Tensor, numel: int) -> tuple[tuple[int, ...], torch.Tensor]:
    wanted = torch.tensor(sample_indices(numel), dtype=torch.int64, device=indices.device)
    hits = (indices[None] == wanted[:, None]).nonzero().tolist()
    return tuple(k for k, _ in hits), torch.tensor([i for _, i in hits], dtype=torch.int64)
