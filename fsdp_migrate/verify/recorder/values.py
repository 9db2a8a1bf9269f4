"""Digests of one step, which leave the device together when the step is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .batch import digest_together, is_small
from .digest import Digested, Place, Range, digest

#: How a value is written: digest, dtype, elements on this rank, sum of squares, sum, greatest magnitude, non-finite
#: elements, and the bits of the sampled elements by their position among the samples.
Written = list[Any]


class Values:
    """Digests under keys, kept on their devices until :meth:`write`."""

    def __init__(self) -> None:
        self._found: list[tuple[dict[str, Any], str, Digested]] = []
        self._waiting: list[tuple[dict[str, Any], str, torch.Tensor, Range, bool]] | None = None

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Digest what is put inside at the end, small tensors in one go; nothing may change them until then."""
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
            self._found += zip(intos, keys, digest_together(locals_, places, samples), strict=True)

    def put(self, into: dict[str, Any], key: str, local: torch.Tensor, place: Place, samples: bool = True) -> None:
        """Digest ``local`` now; :meth:`write` puts the result into ``into[key]``, whose place in the order it keeps."""
        into[key] = None
        if local.is_meta:
            return
        if self._waiting is not None and isinstance(place, Range) and is_small(local, place):
            self._waiting.append((into, key, local, place, samples))
        else:
            self._found.append((into, key, digest(local, place, samples)))

    def write(self) -> None:
        """Wait for the devices, and fill in everything that was put."""
        by_device: dict[torch.device, list[tuple[dict[str, Any], str, Digested]]] = {}
        for entry in self._found:
            by_device.setdefault(entry[2].digest.device, []).append(entry)
        for entries in by_device.values():
            digests = torch.stack([value.digest for _, _, value in entries]).tolist()
            numbers = torch.stack([value.numbers for _, _, value in entries]).tolist()
            sampled = [value.samples for _, _, value in entries if value.samples is not None]
            bits = iter(torch.cat(sampled).tolist() if sampled else [])
            for (into, key, value), whole, four in zip(entries, digests, numbers, strict=True):
                taken = {str(k): next(bits) for k in value.which}
                into[key] = [whole, value.dtype, value.numel, *four, taken]
        self._found.clear()
