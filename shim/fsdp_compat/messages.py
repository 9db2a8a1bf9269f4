"""Warnings of FSDP1, shown where the code that they concern called the shim."""

from __future__ import annotations

import sys
import warnings


def warn_caller(message: str) -> None:
    """A UserWarning located at the innermost frame outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
