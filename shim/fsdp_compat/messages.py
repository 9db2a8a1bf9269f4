"""What the shim says besides errors: warnings where the code that they concern called it, and lines in the log."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence

logger = logging.getLogger("fsdp_compat")
_logged: set[str] = set()


def warn_caller(message: str) -> None:
    """A UserWarning located at the innermost frame outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def log_once(message: str) -> None:
    """Log ``message`` at INFO unless this process has logged it before."""
    if message not in _logged:
        _logged.add(message)
        logger.info(message)


def shortened(names: Sequence[str], limit: int = 5) -> str:
    """The first ``names`` and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
