"""What a rule says about one place in a file: plain data, no libcst."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(str, enum.Enum):
    """How much of a reader's attention a finding needs.

    ``safe``: rewritten, same numbers. ``review``: rewritten, same meaning under the assumption that the
    message states. ``manual``: not rewritten, a TODO stands above the statement. ``info``: nothing to do.
    """

    SAFE = "safe"
    REVIEW = "review"
    MANUAL = "manual"
    INFO = "info"


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
