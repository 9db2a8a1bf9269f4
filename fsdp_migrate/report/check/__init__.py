"""A check in the words of each reader: every format is a pure function of a result."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fsdp_migrate.check.checked import CheckResult

NAMES = ("text", "json", "sarif", "github", "gitlab", "junit")


def render(name: str, result: CheckResult) -> str:
    """The result in the format of this name, one of ``NAMES``."""
    made: Callable[[CheckResult], str] = import_module(f"{__name__}.{name}").render
    return made(result)
