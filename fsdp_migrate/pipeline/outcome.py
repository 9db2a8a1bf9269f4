"""What a run came to, as plain data. Every report and the exit code are functions of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.tree.torch_release import FIRST, TorchRelease
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Failed, Result, Skipped, Unchanged

#: A line of a notebook's cell begins with a quotation mark.
_IMPORT = re.compile(rb"^[ \t\"]*(?:import|from)[ \t]+fsdp_compat\b", re.MULTILINE)


@dataclass(frozen=True)
class FileOutcome:
    """One file that was looked at. ``path`` is as the user named it, ``real`` where it lies; ``before`` was read."""

    path: str
    real: Path
    before: bytes
    result: Result

    @property
    def findings(self) -> tuple[Finding, ...]:
        match self.result:
            case Changed() | Unchanged():
                return self.result.findings
            case Skipped() | Failed():
                return ()


@dataclass(frozen=True)
class RunResult:
    """A whole run. ``refused`` names files with uncommitted work: if there are any, nothing was written.

    The lines of findings are those of the files as they are on disk when the run is over: after a rewrite in place,
    those of the new file. ``outcomes`` holds the files with an FSDP marker in their bytes and the files that failed,
    sorted by path; ``scanned`` counts every file that was found; ``torch`` is the least release that was written for.
    ``changed_since`` are the files that are not those of the trace that was given, None where none was. ``both``: what
    is done with FSDP1's branches beside FSDP2's, ``keep`` or ``retire``; empty where the tree has none.
    """

    paths: tuple[str, ...]
    diff: bool
    scanned: int
    outcomes: tuple[FileOutcome, ...]
    refused: tuple[str, ...] = ()
    torch: TorchRelease = FIRST
    changed_since: tuple[str, ...] | None = None
    both: str = ""

    @property
    def findings(self) -> list[Finding]:
        found = [finding for outcome in self.outcomes for finding in outcome.findings]
        return sorted(found, key=lambda finding: (finding.path, finding.line, finding.column, finding.rule))

    @property
    def changed(self) -> list[FileOutcome]:
        return [outcome for outcome in self.outcomes if isinstance(outcome.result, Changed)]

    @property
    def importing_helpers(self) -> list[FileOutcome]:
        """The files that import ``fsdp_compat`` after the rewrite alone: where they train it has to be installed."""
        return [
            file
            for file in self.changed
            if isinstance(file.result, Changed)
            and _IMPORT.search(file.result.source)
            and not _IMPORT.search(file.before)
        ]

    @property
    def errors(self) -> list[tuple[str, str]]:
        """Path and one-line reason of every file that could not be done."""
        return [(file.path, file.result.error) for file in self.outcomes if isinstance(file.result, Failed)]

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Path and reason of every file that was left out on purpose."""
        return [(file.path, file.result.reason) for file in self.outcomes if isinstance(file.result, Skipped)]

    @property
    def with_fsdp1(self) -> list[FileOutcome]:
        """The files in which a rule saw something, or changed something."""
        return [file for file in self.outcomes if file.findings or isinstance(file.result, Changed)]

    def of_level(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level is level]


def exit_code(result: RunResult) -> int:
    """0: nothing is left to do by hand. 1: something is. 2: some or all of the run could not be done."""
    if result.refused or result.errors:
        return 2
    return 1 if result.of_level(Level.MANUAL) else 0
