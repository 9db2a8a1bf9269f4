"""What becomes of one file: plain data, no libcst."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsdp_rules.verdict.finding import Finding


@dataclass(frozen=True)
class Changed:
    """The file gets new bytes."""

    source: bytes
    findings: tuple[Finding, ...] = field(default=())


@dataclass(frozen=True)
class Unchanged:
    """The file stays as it is; it may still have findings."""

    findings: tuple[Finding, ...] = field(default=())


@dataclass(frozen=True)
class Skipped:
    """The file was not looked at, for a reason that a user should know."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """Something went wrong with this file alone; nothing was changed."""

    error: str


Result = Changed | Unchanged | Skipped | Failed
