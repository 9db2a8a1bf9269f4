"""What a rule says about one place in a file, and what becomes of a file: plain data, no libcst."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Level(str, enum.Enum):
    """How much of a reader's attention a finding needs.

    ``safe``: rewritten, same numbers. ``review``: rewritten, same meaning under the assumption that the
    message states. ``manual``: not rewritten, a TODO stands above the statement. ``info``: nothing to do.
    """

    SAFE = "safe"
    REVIEW = "review"
    MANUAL = "manual"
    INFO = "info"


@dataclass(frozen=True, order=True)
class Span:
    """Where something stands: lines count from 1, columns from 0 in characters, as in :mod:`ast` and libcst."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Finding:
    """One verdict about one place. ``path`` is as the user named it, with forward slashes."""

    rule: str
    name: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    level: Level
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Settings:
    """What a user may ask of a rewrite.

    ``to``: ``native`` (FSDP2) or ``shim`` (imports of ``fsdp_compat``). ``helpers``: whether native output may call
    ``fsdp_compat``. ``select`` and ``ignore`` hold rule ids or prefixes (``FSDP1``); an empty ``select`` means all.
    ``traps``: nothing is going to be written, so that traps are told of in projects that have no FSDP1 any more, too.
    """

    to: str = "native"
    helpers: bool = True
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    traps: bool = False

    def enabled(self, rule_id: str) -> bool:
        """Whether the rule runs under these settings."""
        if any(rule_id.startswith(prefix) for prefix in self.ignore):
            return False
        return not self.select or any(rule_id.startswith(prefix) for prefix in self.select)


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
