"""How far a project is: which of its files are native, on the shim, still FSDP1, or waiting for somebody's hands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fsdp_migrate.check.checked import CheckResult
from fsdp_migrate.tree.files import LARGEST_CONFIG, SUFFIXES, discover, is_config
from fsdp_migrate.tree.regular import read_regular
from fsdp_migrate.tree.selection import Selection
from fsdp_rules.verdict.finding import Level

_NATIVE = re.compile(rb"\b(fully_shard|FSDPModule|FSDP2Strategy|FSDP2Config)\b")
#: How configuration, in a file or in Python, asks for FSDP2: of accelerate, the Trainer and axolotl, then of verl.
_CONFIGURED = re.compile(
    rb"\bfsdp_version[\"']?[ \t]*[:= ][ \t]*[\"']?2\b|\bstrategy[\"']?[ \t]*[:=][ \t]*[\"']?fsdp2\b"
)
_SHIM = re.compile(rb"^[ \t\"]*(from|import)[ \t]+fsdp_compat\b", re.MULTILINE)


class State(Enum):
    """Where a file is, the one that needs most work last; a file with several has the last of them."""

    NATIVE = "native"
    SHIM = "shim"
    FSDP1 = "fsdp1"
    MANUAL = "manual"


@dataclass(frozen=True)
class FileState:
    """One file that has to do with FSDP; ``by_hand`` counts the places that no rewrite can move."""

    path: str
    state: State
    by_hand: int = 0


@dataclass(frozen=True)
class Row:
    """A folder, or a team: how many files are in each state, and how many places are left to do by hand."""

    name: str
    files: Mapping[State, int]
    by_hand: int

    @property
    def total(self) -> int:
        return sum(self.files.values())

    @property
    def moved(self) -> int:
        """Files that no longer run on FSDP1."""
        return self.files[State.NATIVE] + self.files[State.SHIM]


def states(result: CheckResult, selection: Selection) -> list[FileState]:
    """The files of a check at level ``safe`` that have to do with FSDP, by path."""
    found: dict[str, FileState] = {}
    for path, data in _sources(result.paths, selection):
        if _SHIM.search(data):
            found[path] = FileState(path, State.SHIM)
        elif _CONFIGURED.search(data) or (not is_config(Path(path)) and _NATIVE.search(data)):
            found[path] = FileState(path, State.NATIVE)
    failing = [told.finding for told in result.failing if not told.in_checkpoint]
    by_hand = Counter(finding.path for finding in failing if finding.level is Level.MANUAL)
    for path in {finding.path for finding in failing}:
        found[path] = FileState(path, State.MANUAL if by_hand[path] else State.FSDP1, by_hand[path])
    return sorted(found.values(), key=lambda file: file.path)


def rows(files: Iterable[FileState], group: Callable[[str], str]) -> list[Row]:
    """One row for each name that ``group`` gives to a path, by name."""
    groups: dict[str, list[FileState]] = {}
    for file in files:
        groups.setdefault(group(file.path), []).append(file)
    return [row(name, members) for name, members in sorted(groups.items())]


def row(name: str, files: Iterable[FileState]) -> Row:
    """The sum of ``files`` under one name."""
    members = list(files)
    counts = Counter(file.state for file in members)
    return Row(name, {state: counts[state] for state in State}, sum(file.by_hand for file in members))


def _sources(paths: tuple[str, ...], selection: Selection) -> Iterator[tuple[str, bytes]]:
    for source in discover(paths, selection):
        if source.path.suffix in SUFFIXES or source.is_config:
            try:
                if source.is_config and source.path.stat().st_size > LARGEST_CONFIG:
                    continue
                yield source.shown, read_regular(source.path)
            except OSError:
                # The check of the same path has reported it.
                continue
