"""Every kind of generated input by name: how one is drawn, and what must hold for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tests.fuzz import checkpoint_properties, checkpoints, mutations, programs, source_properties


@dataclass(frozen=True)
class Case:
    """One input and its check, which raises where a property does not hold; ``shrinks``: it also takes parts of it."""

    data: bytes
    check: Callable[[bytes], None]
    shrinks: bool = True


def program(rng: random.Random) -> Case:
    """A valid FSDP1 program."""
    source = programs.source(rng)
    return Case(source.data, partial(source_properties.hold, neutral=source.neutral))


def broken_source(rng: random.Random) -> Case:
    """A program with changes at random, most of them no longer Python."""
    return Case(mutations.mutated(rng), source_properties.hold)


def checkpoint(rng: random.Random) -> Case:
    """A checkpoint that torch could have written, or one that says something wrong about its tensors."""
    return Case(checkpoints.structured(rng), checkpoint_properties.hold, shrinks=False)


def broken_checkpoint(rng: random.Random) -> Case:
    """A checkpoint with changes at random in its bytes."""
    return Case(checkpoints.broken(rng), checkpoint_properties.hold, shrinks=False)


KINDS: Mapping[str, Callable[[random.Random], Case]] = {
    "programs": program,
    "broken-sources": broken_source,
    "checkpoints": checkpoint,
    "broken-checkpoints": broken_checkpoint,
}
#: The folder of the corpus for each kind.
FOLDERS = {
    "programs": "sources",
    "broken-sources": "sources",
    "checkpoints": "checkpoints",
    "broken-checkpoints": "checkpoints",
}
