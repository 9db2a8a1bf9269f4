"""The tensors of a state, read one after the other, with a digest of each that says whether it arrived."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeAlias

from fsdp_migrate.checkpoints.entries import Chunk, Entries, Key, TensorEntry, box, spelled
from fsdp_migrate.checkpoints.read import elements
from fsdp_migrate.checkpoints.read.elements import Elements

#: The box of a tensor: the first index and the one behind the last, per dimension.
Box: TypeAlias = tuple[tuple[int, int], ...]
Digests: TypeAlias = dict[tuple[Key, Box], bytes]


class TensorStream:
    """What a writer reads tensors through: it asks for a whole one, or for a chunk, when it is about to write it.

    ``advance`` is called with the number of bytes after each. ``digests`` has one of all that was asked for.
    """

    def __init__(self, entries: Entries, advance: Callable[[int], object] = lambda count: None) -> None:
        self._entries = entries
        self._advance = advance
        self.digests: Digests = {}

    def whole(self, key: Key) -> Elements:
        """All elements of the tensor at ``key``, as :func:`elements.whole`."""
        entry = self._tensor(key)
        held = elements.whole(entry)
        return self._noted(key, tuple((0, size) for size in entry.shape), held)

    def chunk(self, key: Key, chunk: Chunk) -> Elements:
        """The elements of one chunk of the tensor at ``key``, as :func:`elements.of_chunk`."""
        entry = self._tensor(key)
        held = elements.of_chunk(chunk, entry.dtype)
        elements.refuse_other_replicas(entry, chunk, held)
        return self._noted(key, box(chunk), held)

    def _tensor(self, key: Key) -> TensorEntry:
        entry = self._entries[key]
        if not isinstance(entry, TensorEntry):
            raise KeyError(f"{spelled(key)} is a value and not a tensor")
        return entry

    def _noted(self, key: Key, where: Box, held: Elements) -> Elements:
        self.digests[key, where] = digest(held)
        self._advance(len(held))
        return held


def digest(held: Elements) -> bytes:
    """What differs for other elements."""
    return hashlib.blake2b(held.data, digest_size=16).digest()
