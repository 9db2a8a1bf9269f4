"""Digests of tensors in the host's memory: all of them in one go, and every pass over what is in the cache already."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .digest import BITS, BLOCK, Digested, Place, Range, of_block, samples_in_range, within

try:
    import numpy
except ModuleNotFoundError:  # torch does not need it
    numpy = None  # type: ignore[assignment]

_CHUNK = 1 << 15


def is_for_host(local: torch.Tensor, place: Place) -> bool:
    """Whether :func:`digest_on_host` takes this tensor."""
    if numpy is None or not isinstance(place, Range) or not local.is_cpu:
        return False
    return local.numel() == place.length and not local.is_complex()


@dataclass(frozen=True)
class _Chunk:
    """Neighbouring pieces, each of one block: positions of their tensors, and of their elements in these.

    ``starts``: where each piece begins in the chunk. ``weights``: where each one's are in the table. ``sampled``: where
    the samples are in the chunk.
    """

    pieces: tuple[tuple[int, int, int], ...]
    starts: numpy.typing.NDArray[numpy.int64]
    weights: tuple[tuple[int, int], ...]
    sampled: numpy.typing.NDArray[numpy.int64]


@dataclass(frozen=True)
class _Plan:
    """What only depends on the places. ``added`` and ``blocks``: sum of weights and the factor of each piece, int64.

    ``firsts``: the first piece of each of the tensors ``filled``, which are those with elements.
    """

    chunks: tuple[_Chunk, ...]
    added: numpy.typing.NDArray[numpy.int64]
    blocks: numpy.typing.NDArray[numpy.int64]
    filled: numpy.typing.NDArray[numpy.int64]
    firsts: numpy.typing.NDArray[numpy.int64]
    which: tuple[tuple[int, ...], ...]
    numels: tuple[int, ...]


@functools.lru_cache(maxsize=64)
def _plan(places: tuple[Range, ...], samples: tuple[bool, ...]) -> _Plan:
    sampled = [samples_in_range(place) if wanted else ((), None) for place, wanted in zip(places, samples, strict=True)]
    pieces: list[tuple[int, int, int]] = []
    firsts = []
    for number, place in enumerate(places):
        if place.length:
            firsts.append(len(pieces))
        done = 0
        while done < place.length:
            length = min(_CHUNK - (place.start + done) % _CHUNK, place.length - done)
            pieces.append((number, done, length))
            done += length
    starts = [places[number].start + done for number, done, _ in pieces]
    weights = [(start % BLOCK, start % BLOCK + length) for start, (_, _, length) in zip(starts, pieces, strict=True)]
    running = numpy.concatenate([numpy.zeros(1, numpy.int64), numpy.cumsum(_table())])
    ends = numpy.array(weights, numpy.int64).reshape(-1, 2)
    chunks: list[list[int]] = []
    room = 0
    for position, (_, _, length) in enumerate(pieces):
        if length > room:
            chunks.append([])
            room = _CHUNK
        chunks[-1].append(position)
        room -= length
    return _Plan(
        tuple(_chunk([pieces[p] for p in chunk], [weights[p] for p in chunk], sampled) for chunk in chunks),
        running[ends[:, 1]] - running[ends[:, 0]],
        numpy.array([of_block(start // BLOCK) for start in starts], numpy.int64),
        numpy.array([number for number, place in enumerate(places) if place.length], numpy.int64),
        numpy.array(firsts, numpy.int64),
        tuple(which for which, _ in sampled),
        tuple(place.length for place in places),
    )


def _chunk(
    pieces: list[tuple[int, int, int]],
    weights: list[tuple[int, int]],
    sampled: Sequence[tuple[tuple[int, ...], torch.Tensor | None]],
) -> _Chunk:
    ends = numpy.cumsum([0, *(length for _, _, length in pieces)])
    found = []
    for start, (number, done, length) in zip(ends.tolist(), pieces, strict=False):
        at = sampled[number][1]
        found += [start + i - done for i in (at.tolist() if at is not None else ()) if done <= i < done + length]
    return _Chunk(tuple(pieces), ends[:-1], tuple(weights), numpy.array(found, numpy.int64))


@functools.cache
def _table() -> numpy.typing.NDArray[numpy.int64]:
    return within(torch.device("cpu")).numpy()


def digest_on_host(locals_: Sequence[torch.Tensor], places: Sequence[Range], samples: Sequence[bool]) -> Digested:
    """As ``digest`` for each of the tensors, which are of one dtype and in the host's memory."""
    plan = _plan(tuple(places), tuple(samples))
    with torch.no_grad(), numpy.errstate(all="ignore"):
        flats = [local.reshape(-1) for local in locals_]
        table, room = _table(), _room()
        found = [_of_chunk(flats, chunk, table, room) for chunk in plan.chunks]
        digests = numpy.zeros(len(flats), numpy.int64)
        numbers = numpy.zeros((len(flats), 4))
        taken = numpy.zeros(0, numpy.int64)
        if found:
            sums, four, bits = (numpy.concatenate(each) for each in zip(*found, strict=True))
            digests[plan.filled] = numpy.add.reduceat((sums + plan.added) * plan.blocks, plan.firsts)
            for column in range(4):
                how = numpy.maximum if column == 2 else numpy.add
                numbers[plan.filled, column] = how.reduceat(four[:, column], plan.firsts)
            taken = bits
    dtype = str(flats[0].dtype).removeprefix("torch.")
    arrays = (torch.from_numpy(array) for array in (digests, numbers, taken))
    return Digested(next(arrays), next(arrays), next(arrays), plan.which, plan.numels, dtype)


class _Room(threading.local):
    """Memory for one chunk, kept by each thread: new pages cost more than the numbers that fill them."""

    def __init__(self) -> None:
        self.bits = numpy.empty(_CHUNK, numpy.int64)
        self.values = torch.empty(_CHUNK, dtype=torch.float64)
        self.squares = self.bits.view(numpy.float64)


@functools.cache
def _room() -> _Room:
    return _Room()


def _of_chunk(
    flats: Sequence[torch.Tensor], chunk: _Chunk, table: numpy.typing.NDArray[numpy.int64], room: _Room
) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.int64]]:
    """Sums of bits by weights, rows as in :class:`Digested`, and the bits of the samples."""
    parts = [
        flats[number] if length == flats[number].numel() else flats[number][done : done + length]
        for number, done, length in chunk.pieces
    ]
    flat = parts[0] if len(parts) == 1 else torch.cat(parts)
    size, starts = flat.numel(), chunk.starts
    bits = flat.view(BITS[flat.element_size()]).numpy()
    weights = [table[start:end] for start, end in chunk.weights]
    by_weight = numpy.multiply(
        bits, weights[0] if len(weights) == 1 else numpy.concatenate(weights), out=room.bits[:size]
    )
    sums = numpy.add.reduceat(by_weight, starts)
    room.values[:size].copy_(flat)
    values = room.values[:size].numpy()
    rows = numpy.empty((len(parts), 4))
    rows[:, 0] = numpy.add.reduceat(numpy.multiply(values, values, out=room.squares[:size]), starts)
    rows[:, 1] = numpy.add.reduceat(values, starts)
    rows[:, 2] = numpy.maximum(-numpy.minimum.reduceat(values, starts), numpy.maximum.reduceat(values, starts))
    rows[:, 3] = 0
    if not numpy.isfinite(rows[:, 0]).all():
        rows[:, 3] = numpy.add.reduceat((~numpy.isfinite(values)).astype(numpy.float64), starts)
    return sums, rows, bits[chunk.sampled].astype(numpy.int64)
