"""What a checkpoint holds on its way from the files that it was read from to those that it is written to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsdp_migrate.checkpoints.model import Entries, Sequences


class CannotConvert(Exception):
    """A checkpoint that cannot be written as asked; the message says what is in the way, where, and what to do."""


@dataclass(frozen=True)
class State:
    """``entries`` as they are to be written, under their new keys; their chunks still lie in the files of the source.

    ``sequences``: which of the keys' prefixes are lists and tuples. ``notes``: what was changed on the way, and what
    was left out, as sentences for the person who asked.
    """

    entries: Entries
    sequences: Sequences
    notes: tuple[str, ...] = ()

    def noting(self, *notes: str) -> State:
        return replace(self, notes=(*self.notes, *notes))
