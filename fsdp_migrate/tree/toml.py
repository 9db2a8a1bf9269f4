"""TOML by the standard library where it has it, by tomli on Python 3.10."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Protocol, cast


class Toml(Protocol):
    """What ``tomllib`` and ``tomli`` have in common."""

    def loads(self, text: str, /) -> dict[str, Any]:
        """The tables of ``text``."""


def toml() -> Toml:
    """The module that reads TOML on this Python."""
    return cast(Toml, importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli"))
