"""What a check came to, as plain data. Every format and the exit code are functions of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fsdp_migrate.pipeline.hunks import Hunk
from fsdp_migrate.tree.settings import LEVELS
from fsdp_rules.verdict.finding import Finding, Level

#: From what needs no attention to what needs most of it.
ORDER = tuple(map(Level, LEVELS))


#: What a message begins with where no summary says that nothing is rewritten yet.
_WOULD = {
    Level.SAFE: "FSDP1 code that rewrite would change: ",
    Level.REVIEW: "FSDP1 code that rewrite would change on an assumption: ",
}


@dataclass(frozen=True)
class Told:
    """A finding as a check tells it.

    ``fails``: it is at or above the level that was asked for. ``in_checkpoint``: it is about a checkpoint as a whole,
    so that its line and column mean nothing. ``fingerprint`` stays the same where the code around it moves.
    ``source`` is the line that it is about, ``fix`` what a rewrite would change there, ``moves`` whether it changes
    anything there, also where ``fix`` does not say what since rules are left out.
    """

    finding: Finding
    fails: bool
    in_checkpoint: bool
    fingerprint: str
    source: str = ""
    fix: tuple[Hunk, ...] = ()
    moves: bool = False

    @property
    def alone(self) -> Finding:
        """The finding for formats that show it by itself: its message then says whether a rewrite is yet to come."""
        would = _WOULD.get(self.finding.level, "") if self.moves else ""
        return dataclasses.replace(self.finding, message=would + self.finding.message)


@dataclass(frozen=True)
class CheckResult:
    """A whole check. ``paths`` are those of sources, as they were named.

    ``told`` is sorted by path and line: what fails, and notes (level ``info``), which are told at any level.
    ``below`` counts the findings that are neither, ``known`` those that stand in the baseline. ``sources`` and
    ``checkpoints`` count what was looked at. ``errors`` and ``skipped`` are pairs of path and reason. ``both`` is
    that of a :class:`fsdp_migrate.pipeline.outcome.RunResult`.
    """

    paths: tuple[str, ...]
    min_level: Level
    sources: int
    checkpoints: int
    told: tuple[Told, ...]
    below: int = 0
    known: int = 0
    errors: tuple[tuple[str, str], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    both: str = ""

    @property
    def failing(self) -> list[Told]:
        return [told for told in self.told if told.fails]


def at_least(level: Level, wanted: Level) -> bool:
    """Whether a finding of ``level`` needs as much attention as ``wanted`` says, or more."""
    return ORDER.index(level) >= ORDER.index(wanted)


def exit_code(result: CheckResult) -> int:
    """0: nothing at or above the level. 1: something is. 2: some or all of the check could not be done."""
    if result.errors:
        return 2
    return 1 if result.failing else 0
