"""The tensors of a state, read one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from fsdp_migrate.checkpoints.convert import kept
from fsdp_migrate.checkpoints.entries import Chunk, Entries, Key, TensorEntry, spelled
from fsdp_migrate.checkpoints.read import elements
from fsdp_migrate.checkpoints.read.elements import Elements


class TensorStream:
    """What a writer reads tensors through: it asks for a whole one, or for a chunk, when it is about to write it.

    ``advance`` is called with the number of bytes after each, ``keeps`` with those that the target had already.
    """

    def __init__(
        self,
        entries: Entries,
        advance: Callable[[int], object] = lambda count: None,
        keeps: Callable[[int], object] = lambda count: None,
    ) -> None:
        self._entries = entries
        self._advance = advance
        self._keeps = keeps

    def opened(self, path: Path) -> AbstractContextManager[IO[bytes]]:
        """The file at ``path`` to write, as :func:`kept.opened`."""
        return kept.opened(path, self._keeps)

    def whole(self, key: Key) -> Elements:
        """All elements of the tensor at ``key``, as :func:`elements.whole`."""
        return self._noted(elements.whole(self._tensor(key)))

    def stretches(self, key: Key) -> Iterator[Elements]:
        """All elements of the tensor at ``key``, as :func:`elements.stretches`."""
        return map(self._noted, elements.stretches(self._tensor(key)))

    def copy(self, key: Key, file: IO[bytes]) -> None:
        """Write all elements of the tensor at ``key`` to ``file``, which :meth:`opened` gave."""
        entry = self._tensor(key)
        where = elements.as_it_lies(entry)
        done = 0 if where is None else kept.copied(where.file, where.offset, entry.nbytes, file)
        self._advance(done)
        if done < entry.nbytes:
            for stretch in map(self._noted, elements.stretches(entry, done)):
                file.write(stretch.data)

    def chunk(self, key: Key, chunk: Chunk) -> Elements:
        """The elements of one chunk of the tensor at ``key``, as :func:`elements.of_chunk`."""
        entry = self._tensor(key)
        held = elements.of_chunk(chunk, entry.dtype)
        elements.refuse_other_replicas(entry, chunk, held)
        return self._noted(held)

    def _tensor(self, key: Key) -> TensorEntry:
        entry = self._entries[key]
        if not isinstance(entry, TensorEntry):
            raise KeyError(f"{spelled(key)} is a value and not a tensor")
        return entry

    def _noted(self, held: Elements) -> Elements:
        self._advance(len(held))
        return held
