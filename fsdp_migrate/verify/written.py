"""Checkpoints that the two runs have written into their copies, compared tensor by tensor."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoints.entries import BadCheckpoint, Key, TensorEntry, spelled, tensors
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint, open_all


@dataclass(frozen=True)
class Written:
    """Paths inside of the copies: ``equal`` in all tensors, ``different`` with the reason, or of one run alone."""

    equal: tuple[str, ...] = ()
    different: tuple[tuple[str, str], ...] = ()
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()


def compare(before: Path, after: Path, known: Path) -> Written:
    """What lies in the folders ``before`` and ``after``, and not in ``known``, from which both were made.

    Nothing is unpickled. One tensor of each side is in memory at a time.
    """
    one, two = _new(before, known), _new(after, known)
    found = {name: _difference(one[name], two[name]) for name in one if name in two}
    return Written(
        tuple(name for name, said in found.items() if not said),
        tuple((name, said) for name, said in found.items() if said),
        tuple(sorted(one.keys() - two.keys())),
        tuple(sorted(two.keys() - one.keys())),
    )


def _new(tree: Path, known: Path) -> dict[str, Checkpoint]:
    try:
        every = open_all(tree)
    except BadCheckpoint:
        return {}
    return {
        one.path.relative_to(tree).as_posix(): one
        for one in every
        if any(not (known / file.relative_to(tree)).exists() for file in one.found.files)
    }


def _difference(before: Checkpoint, after: Checkpoint) -> str:
    """What is first found to differ; empty where nothing does."""
    for side, checkpoint in (("before", before), ("after", after)):
        if checkpoint.problems:
            return f"not complete {side}: {checkpoint.problems[0]}"
    one, two = dict(tensors(before.entries)), dict(tensors(after.entries))
    for key in (*one, *two):
        if key not in one or key not in two:
            return f"{spelled(key)} is written {'before' if key in one else 'after'} only"
    return next((said for key in one if (said := _apart(key, one[key], two[key]))), "")


def _apart(key: Key, one: TensorEntry, two: TensorEntry) -> str:
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return f"{spelled(key)} is {one.dtype} {one.shape} before and {two.dtype} {two.shape} after"
    return "" if _digest(one) == _digest(two) else f"{spelled(key)} has other elements"


def _digest(entry: TensorEntry) -> bytes:
    # numpy, which this needs, is an extra.
    from fsdp_migrate.checkpoints.read import elements

    return hashlib.sha256(elements.whole(entry).data).digest()
