"""Which files of a project list what it requires, and how much the word of each counts."""

from __future__ import annotations

import re
from enum import IntEnum


class Kind(IntEnum):
    """What a file lists; what comes first counts first."""

    PROJECT = 0
    LINES = 1
    SETUP = 2
    CONSTRAINTS = 3
    LOCK = 4
    #: What a Dockerfile installs is a hint, and no finding speaks of it.
    HINT = 5


_KINDS = (
    (Kind.PROJECT, r"pyproject\.toml"),
    (
        Kind.LINES,
        r"setup\.cfg|Pipfile|(conda|environment)[\w.-]*\.ya?ml|requirements?[\w.-]*\.(txt|in)|requirements/[\w.-]+\.(txt|in)",
    ),
    (Kind.CONSTRAINTS, r"constraints?[\w.-]*\.txt"),
    (Kind.LOCK, r"Pipfile\.lock|(poetry|uv|pdm)\.lock|pylock[\w.-]*\.toml"),
)
_PATTERNS = tuple((kind, re.compile(rf"(?:^|/)(?:{pattern})$")) for kind, pattern in _KINDS)
_DOCKERFILE = re.compile(r"(?:^|/)(?:[\w.-]+\.)?[Dd]ockerfile(?:\.[\w.-]+)?$")


def is_requirements(path: str) -> bool:
    """Whether a file of this path, with ``/`` between its parts, lists requirements and nothing else."""
    return any(pattern.search(path) for _, pattern in _PATTERNS)


def kind_of(path: str) -> Kind | None:
    """What a file of this path lists; None where it is none of these."""
    found = next((kind for kind, pattern in _PATTERNS if pattern.search(path)), None)
    if found is None and path.rpartition("/")[2] == "setup.py":
        return Kind.SETUP
    return Kind.HINT if found is None and _DOCKERFILE.search(path) else found
