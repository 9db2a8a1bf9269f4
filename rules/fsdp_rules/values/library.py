"""What functions and methods outside of the tree do to values, as data."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from fsdp_rules.project.passing_on import PASSING_ON

NAME = "library.toml"


@cache
def table(section: str) -> Mapping[str, str]:
    """The effect of each name of a section."""
    found: dict[str, list[str]] = _library()[section]
    return {name: effect for effect, names in found.items() for name in names}


def is_known(name: str) -> bool:
    """Whether it is known what the function with the dotted ``name`` gives."""
    beginnings = table("beginnings")
    return name in table("functions") or name in PASSING_ON or any(map(name.startswith, beginnings))


@cache
def _library() -> dict[str, dict[str, list[str]]]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    found: dict[str, dict[str, list[str]]] = toml.loads((files("fsdp_rules.values") / NAME).read_text(encoding="utf-8"))
    return found
