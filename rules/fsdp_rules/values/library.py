"""What functions and methods outside of the tree do to values, as data."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

NAME = "library.toml"


@cache
def table(section: str) -> Mapping[str, str]:
    """The effect of each name of a section."""
    found: dict[str, list[str]] = _library()[section]
    return {name: effect for effect, names in found.items() for name in names}


@cache
def _library() -> dict[str, dict[str, list[str]]]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    found: dict[str, dict[str, list[str]]] = toml.loads((files("fsdp_rules.values") / NAME).read_text(encoding="utf-8"))
    return found
