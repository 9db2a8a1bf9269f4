"""What a rule says about one place in a file: plain data, no libcst."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

_PLACE = re.compile(r"(?:line |(?P<path>.+):)(?P<line>\d+)")


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
    """One verdict about one place. ``path`` is as the user named it, with forward slashes.

    ``statement`` is the first line of the statement around the place, 0 where there is none. ``wrapped`` says where
    the model that the finding is about is wrapped: ``line 12`` of the same file, or ``net.py:12``.
    ``ran``: whether its line ran in a traced run, None where there is no trace of its file. ``edit`` names the edits
    that it is about, the same for all findings about them, where other forms are asked for.
    """

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
    statement: int = 0
    wrapped: str = ""
    ran: bool | None = None
    edit: str = ""

    @property
    def wrap(self) -> tuple[str, int] | None:
        """The path and line, from 1, of ``wrapped``; None where it is not known, or where several wraps share it."""
        found = _PLACE.fullmatch(self.wrapped)
        return (found["path"] or self.path, int(found["line"])) if found else None

    @property
    def text(self) -> str:
        """The message as reports print it."""
        return f"{self.message} (wrapped in {self.wrapped})" if self.wrapped else self.message
