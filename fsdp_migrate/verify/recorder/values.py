"""Digests of one step, which leave the device together when the step is over."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from .batch import digest_together, is_small
from .digest import Digested, Place, Range, digest
from .host import digest_on_host, is_for_host

#: How a value is written: digest, dtype, elements on this rank, sum of squares, sum, greatest magnitude, non-finite
#: elements, and of the sampled elements their positions among the samples and their bits.
Written = list[Any]


class Values:
    """Digests under keys, kept on their devices until :meth:`write`."""

    def __init__(self) -> None:
        self._found: list[tuple[list[tuple[dict[str, Any], str]], Digested]] = []
        self._waiting: list[tuple[dict[str, Any], str, torch.Tensor, Range, bool]] | None = None

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Digest what is put inside at the end, in one go; nothing may change it until then."""
        self._waiting = []
        try:
            yield
        finally:
            waiting, self._waiting = self._waiting, None
        alike: dict[tuple[torch.dtype, torch.device], list[tuple[dict[str, Any], str, torch.Tensor, Range, bool]]] = {}
        for entry in waiting:
            alike.setdefault((entry[2].dtype, entry[2].device), []).append(entry)
        for entries in alike.values():
            intos, keys, locals_, places, samples = zip(*entries, strict=True)
            how = digest_on_host if is_for_host(locals_[0], places[0]) else digest_together
            self._found.append((list(zip(intos, keys, strict=True)), how(locals_, places, samples)))

    def put(self, into: dict[str, Any], key: str, local: torch.Tensor, place: Place, samples: bool = True) -> None:
        """Digest ``local`` now; :meth:`write` puts the result into ``into[key]``, whose place in the order it keeps."""
        into[key] = None
        if local.is_meta:
            return
        on_host = is_for_host(local, place)
        if self._waiting is not None and isinstance(place, Range) and (on_host or is_small(local, place)):
            self._waiting.append((into, key, local, place, samples))
        elif on_host and isinstance(place, Range):
            self._found.append(([(into, key)], digest_on_host([local], [place], [samples])))
        else:
            self._found.append(([(into, key)], digest(local, place, samples)))

    def write(self) -> None:
        """Wait for the devices, and fill in everything that was put."""
        by_device: dict[torch.device, list[tuple[list[tuple[dict[str, Any], str]], Digested]]] = {}
        for entry in self._found:
            by_device.setdefault(entry[1].digests.device, []).append(entry)
        for entries in by_device.values():
            digests = iter(torch.cat([found.digests for _, found in entries]).tolist())
            numbers = iter(torch.cat([found.numbers for _, found in entries]).tolist())
            bits = iter(torch.cat([found.samples for _, found in entries]).tolist())
            for keys, found in entries:
                for (into, key), which, numel in zip(keys, found.which, found.numels, strict=True):
                    taken = [which, list(itertools.islice(bits, len(which)))]
                    into[key] = [next(digests), found.dtype, numel, *next(numbers), taken]
        self._found.clear()
