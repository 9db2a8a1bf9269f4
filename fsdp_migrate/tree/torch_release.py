"""The least torch that a project requires, which is what a rewrite writes for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypedDict

from packaging.version import InvalidVersion, Version

from fsdp_migrate.tree.requirements import RELEASES, Listed, listed, newest_allowed
from fsdp_migrate.tree.upwards import upwards
from fsdp_rules.settings import FIRST_TORCH

#: The newest release that the rules were written and tested for.
_NEWEST = Version(RELEASES["torch"][-1])


@dataclass(frozen=True)
class TorchRelease:
    """The least torch (major, minor) that an output has to run on, and which file or option says so.

    ``allowed`` is an older release that the project allows, "" where there is none: FSDP2 starts with torch 2.6.
    """

    release: tuple[int, int] = FIRST_TORCH
    source: str = ""
    allowed: str = ""

    def __str__(self) -> str:
        return ".".join(map(str, self.release))

    @property
    def newer_than(self) -> str:
        """The newest release that is known, where this one is newer still; else empty."""
        known = (_NEWEST.major, _NEWEST.minor)
        return ".".join(map(str, known)) if self.release > known else ""

    @property
    def raises(self) -> bool:
        """Whether the project may run on a torch before FSDP2's first now."""
        return not self.source or bool(self.allowed)


#: Where nothing is known of a project: what is written for the first release with FSDP2 runs on every later one.
FIRST = TorchRelease()


def parse_release(text: str) -> tuple[int, int]:
    """``2.13`` or ``2.13.1`` as numbers. Raises ValueError for what is no release, or one before FSDP2 or unknown."""
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is not a release: write it as 2.13") from error
    if version.release[:2] < FIRST_TORCH:
        raise ValueError(f"FSDP2 needs torch {'.'.join(map(str, FIRST_TORCH))} or newer, not {text}")
    if version.major > _NEWEST.major:
        raise ValueError(f"torch {text} is not known: the newest known release is {_NEWEST}")
    return version.major, version.minor


def least_torch(target: Path) -> TorchRelease:
    """The least torch of the project around ``target``; else FSDP2's first.

    The nearest directory upwards that requires a torch counts, up to the root of the repository. Where several of its
    files of one kind say different things, the least does. pyproject.toml comes first, then requirements and conda's
    environments, setup.py, constraints, lock files, and what a Dockerfile installs.
    """
    for directory in upwards(target):
        found = sorted(listed(directory, "torch"), key=lambda one: one.kind)
        for _, same in groupby(found, key=lambda one: one.kind):
            known = [(version, one.file) for one in same if (version := _least(one)) is not None]
            if known:
                return _release(*min(known))
    return FIRST


def _least(one: Listed) -> Version | None:
    """The lower bound of a requirement, or what it allows at most where that is before FSDP2."""
    least, newest = one.required.least, one.required.newest
    if least is None and newest is not None and newest.release[:2] < FIRST_TORCH:
        return newest
    return least


def _release(version: Version, source: str) -> TorchRelease:
    wanted = (version.major, version.minor)
    if wanted < FIRST_TORCH:
        return TorchRelease(FIRST_TORCH, source, f"{version.major}.{version.minor}")
    return TorchRelease(wanted, source)


class Newest(TypedDict):
    """The newest release (major, minor) of each framework that a project allows; None where it says nothing."""

    transformers: tuple[int, int] | None
    accelerate: tuple[int, int] | None


def newest_releases(target: Path) -> Newest:
    """Those of the project around ``target``."""
    found = (newest_allowed(target, name) for name in ("transformers", "accelerate"))
    transformers, accelerate = ((version.major, version.minor) if version else None for version in found)
    return {"transformers": transformers, "accelerate": accelerate}
