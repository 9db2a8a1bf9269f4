"""The frameworks that run FSDP1 for their users (``hosts.toml``), as data."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Host:
    """One framework: the full names that stand for FSDP1, what to say about them and what to do.

    ``moved_in_python``: a rule about it rewrites Python, so that only configuration is reported.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    message: str
    advice: str
    moved_in_python: bool


@cache
def hosts() -> tuple[Host, ...]:
    """All of them, in the order of the list."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    content = toml.loads(files("fsdp_rules.hosts").joinpath("hosts.toml").read_text(encoding="utf-8"))
    return tuple(
        Host(
            name,
            row["title"],
            tuple(row["classes"]),
            row["message"],
            row["advice"],
            row.get("moved_in_python", False),
        )
        for name, row in content.items()
    )


@cache
def host_of(full: str) -> Host | None:
    """The framework that the full name of a class belongs to."""
    return next((host for host in hosts() if full in host.classes), None)
