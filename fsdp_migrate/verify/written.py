"""Checkpoints that the two runs have written into their copies, compared tensor by tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoints.entries import BadCheckpoint, Key, TensorEntry, spelled, tensors
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint, open_all
from fsdp_migrate.checkpoints.traits import shared_moments
from fsdp_migrate.report.summary import count


@dataclass(frozen=True)
class Written:
    """Paths inside of the copies: ``equal`` in all tensors, ``different`` with the reason, or of one run alone.

    ``lost`` are those of ``equal`` whose old file lacks states of an optimizer, with these.
    """

    equal: tuple[str, ...] = ()
    different: tuple[tuple[str, str], ...] = ()
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()


def compare(before: Path, after: Path, known: Path) -> Written:
    """What lies in the folders ``before`` and ``after``, and not in ``known``, from which both were made.

    Nothing is unpickled. One tensor of each side is in memory at a time.
    """
    one, two = _new(before, known), _new(after, known)
    found = {name: _difference(one[name], two[name]) for name in one if name in two}
    equal = tuple(name for name, said in found.items() if not said)
    return Written(
        equal,
        tuple((name, said) for name, said in found.items() if said),
        tuple(sorted(one.keys() - two.keys())),
        tuple(sorted(two.keys() - one.keys())),
        tuple((name, _told(lost)) for name in equal if (lost := _lost(one[name], two[name]))),
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
    lost = _lost(before, after)
    for parameter, states in lost.items():
        # One of them is what the file has.
        keys = [(*parameter, state) for state in states]
        if all(_apart(key, one[key], two[key]) for key in keys):
            return f"{spelled(keys[0])} has other elements"
    compared = (key for key in one if key[:-1] not in lost or key[-1] not in lost[key[:-1]])
    return next((said for key in compared if (said := _apart(key, one[key], two[key]))), "")


def _lost(before: Checkpoint, after: Checkpoint) -> dict[Key, tuple[str, ...]]:
    """The parameters of which ``before`` has several states as one tensor (FSDP407) and ``after`` does not."""
    found, kept = shared_moments(before.entries), shared_moments(after.entries)
    return {parameter: states for parameter, states in found.items() if parameter not in kept}


def _told(lost: Mapping[Key, tuple[str, ...]]) -> str:
    states = " and ".join(next(iter(lost.values())))
    return (
        f"{states} of {count(len(lost), 'parameter')} are one tensor in the old file, as FSDP1 saves them on the CPU "
        "(FSDP407), so they are not compared: the new file has all of them"
    )


def _apart(key: Key, one: TensorEntry, two: TensorEntry) -> str:
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return f"{spelled(key)} is {one.dtype} {one.shape} before and {two.dtype} {two.shape} after"
    return "" if _digest(one) == _digest(two) else f"{spelled(key)} has other elements"


def _digest(entry: TensorEntry) -> bytes:
    # numpy, which this needs, is an extra.
    from fsdp_migrate.checkpoints.read import elements

    return hashlib.sha256(elements.whole(entry).data).digest()
