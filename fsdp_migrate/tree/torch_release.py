"""The least torch that a project requires, which is what a rewrite writes for."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from fsdp_migrate.tree.regular import text_of
from fsdp_migrate.tree.requirements import RELEASES
from fsdp_migrate.tree.toml import toml
from fsdp_migrate.tree.upwards import upwards
from fsdp_rules.settings import FIRST_TORCH

#: A requirement in quotes, on a line of its own, or as an item of a list.
_LINE = re.compile(r"^[\s\-\"']*(?P<text>torch(?![\w-])[^#\"';]*)", re.MULTILINE)
#: The newest release that the rules were written and tested for.
_NEWEST = Version(RELEASES["torch"][-1])
#: Operators that say which release is the least.
_FROM = frozenset({">=", "==", "===", "~=", ">"})


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


#: Where nothing is known of a project.
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
    """The least torch of the project around ``target``; else the one installed here, else FSDP2's first.

    The nearest directory upwards that requires a torch counts, up to the root of the repository. Where several of its
    files say different things, the least does; lock files count where no other file has a lower bound.
    """
    for directory in upwards(target):
        found = _bounds(directory)
        if found:
            version, name = min(found)
            return _release(version, name)
    try:
        return _release(Version(metadata.version("torch")), "the torch that is installed here")
    except (metadata.PackageNotFoundError, InvalidVersion):
        return FIRST


def _release(version: Version, source: str) -> TorchRelease:
    wanted = (version.major, version.minor)
    if wanted < FIRST_TORCH:
        return TorchRelease(FIRST_TORCH, source, f"{version.major}.{version.minor}")
    return TorchRelease(wanted, source)


def _bounds(directory: Path) -> list[tuple[Version, str]]:
    """The lower bounds that the files of ``directory`` give, each with the name of its file."""
    for patterns, reader in _READERS:
        found: list[tuple[Version, str]] = []
        for path in sorted({path for pattern in patterns for path in _files(directory, pattern)}):
            try:
                text = text_of(path, "replace")
                bounds = list(reader(text))
            except (OSError, ValueError, RecursionError, SyntaxError):
                continue
            found += [(version, path.relative_to(directory).as_posix()) for version in bounds]
        if found:
            return found
    return []


def _files(directory: Path, pattern: str) -> list[Path]:
    try:
        return [path for path in directory.glob(pattern) if path.is_file()]
    except OSError:
        return []


def _of_lines(text: str) -> Iterator[Version]:
    for match in _LINE.finditer(text):
        # conda pins with one sign, poetry writes carets.
        requirement = re.sub(r"(?<![=<>!~])=(?!=)", "==", match["text"].strip().rstrip(",").strip())
        yield from _lower(requirement)


def _of_setup(text: str) -> Iterator[Version]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"torch\b(?!-)", node.value):
            yield from _lower(node.value)


def _of_project(text: str) -> Iterator[Version]:
    content = toml().loads(text)
    for requirement in _strings(content):
        if re.match(r"torch\b(?!-)", requirement):
            yield from _lower(requirement)
    entry: Any = content.get("tool", {}).get("poetry", {}).get("dependencies", {}).get("torch")
    version = entry.get("version", "") if isinstance(entry, dict) else entry
    if isinstance(version, str):
        yield from _lower("torch" + re.sub(r"^[\^~]?(?=\d)", ">=", version.strip()))


def _strings(value: object) -> Iterator[str]:
    """All strings in lists of a TOML file, as its requirements are."""
    pending = [value]
    while pending:
        entry = pending.pop()
        if isinstance(entry, dict):
            pending += entry.values()
        elif isinstance(entry, list):
            yield from (text for text in entry if isinstance(text, str))
            pending += entry


def _of_lock(text: str) -> Iterator[Version]:
    packages = toml().loads(text).get("package", [])
    for entry in packages:
        if isinstance(entry, dict) and entry.get("name") == "torch" and isinstance(entry.get("version"), str):
            yield Version(entry["version"])


def _lower(requirement: str) -> Iterator[Version]:
    """The lower bound of one requirement, if it has one."""
    try:
        specifier = Requirement(requirement).specifier
    except InvalidRequirement:
        return
    bounds = [Version(one.version.removesuffix(".*")) for one in specifier if one.operator in _FROM]
    if bounds:
        yield max(bounds)


#: Names of files and how they are read; what comes later counts where all before it is silent.
_READERS: tuple[tuple[tuple[str, ...], Callable[[str], Iterator[Version]]], ...] = (
    (("pyproject.toml",), _of_project),
    (("requirements*.txt", "requirements/*.txt", "setup.cfg", "environment*.y*ml", "conda*.y*ml"), _of_lines),
    (("setup.py",), _of_setup),
    (("uv.lock", "poetry.lock", "pdm.lock", "pylock*.toml"), _of_lock),
)
