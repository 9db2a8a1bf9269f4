"""What the pickles of one checkpoint name, file by file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from pickletools import opcodes

from fsdp_migrate.checkpoints.entries import BadCheckpoint, Item, TensorEntry
from fsdp_migrate.checkpoints.read.archive import first_bytes, open_archive, starts_as_archive
from fsdp_migrate.checkpoints.read.danger import dangerous, foreign, pickles_in
from fsdp_migrate.checkpoints.read.unpickle import Global, Pickled
from fsdp_migrate.checkpoints.read.unpickle import read as read_pickle

#: More bytes than the pickles have that torch before 1.6 wrote, before its storages.
OLD_LIMIT = 2**28
_OPERATIONS = frozenset(operation.code.encode("latin-1") for operation in opcodes)


class Seen:
    """All names in the pickles read so far; ``dangers`` and ``foreign`` as in :class:`Checkpoint`, by file."""

    def __init__(self) -> None:
        self.names: set[Global] = set()
        self.dangers: dict[Path, set[Global]] = {}
        self.foreign: dict[Path, set[Global]] = {}

    def note(self, path: Path, pickled: Pickled) -> None:
        """Add what a pickle in the file at ``path`` names."""
        self.names |= pickled.names
        for held, names in ((self.dangers, dangerous(pickled)), (self.foreign, foreign(pickled))):
            if names:
                held.setdefault(path, set()).update(names)

    def pickles(self, path: Path, data: bytes) -> list[Pickled]:
        """The pickles that follow each other in ``data``, with what they name added."""
        found = list(pickles_in(data))
        for pickled in found:
            self.note(path, pickled)
        return found

    def chunks(self, entry: TensorEntry, broken: Set[Path]) -> Iterator[str]:
        """Add what the pickles of a tensor's chunks name, but for ``broken`` files; gives what is wrong with a chunk.

        Its elements are not read: of each chunk the directory of its archive and its pickle.
        """
        for chunk in entry.chunks:
            where = chunk.where
            if not isinstance(where, Item) or not where.length or where.file in broken:
                continue
            try:
                if starts_as_archive(where):
                    for data in open_archive(where).pickles.values():
                        self.note(where.file, read_pickle(data))
                elif first_bytes(where, 1) in _OPERATIONS:
                    self.pickles(where.file, first_bytes(where, OLD_LIMIT))
            except BadCheckpoint as error:
                yield str(error)


def by_file(found: Mapping[Path, Set[Global]]) -> tuple[tuple[Path, tuple[Global, ...]], ...]:
    """Files and names, both sorted."""
    return tuple((path, tuple(sorted(names))) for path, names in sorted(found.items()))
