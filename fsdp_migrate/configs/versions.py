"""Combinations of versions that are silent or break (``versions.toml``), in the requirements of a project."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from fsdp_rules.verdict.finding import Finding, Level

RULE, NAME = "FSDP571", "versions"
DOC = """\
Required framework versions that do not match the project's FSDP.

Requirements in requirements files, pyproject.toml, setup.cfg and conda's environment files are read, together with what
the other rules found in the project. A requirement without an upper bound counts as the newest release that this tool
knows; one without a line on it is installed as that, too. The combinations, each with the thread that shows it, are
fsdp_migrate/configs/versions.toml.
"""
#: A requirement on a line of its own, in quotes, or as an item of a list.
_LINE = re.compile(r"^[\s\-\"']*(?P<text>(?P<name>transformers|accelerate|torch)(?![\w-])[^#\"';]*)", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One combination: ``package`` from ``since`` to before ``before``, where one of the rules ``used`` has spoken."""

    package: str
    affected: SpecifierSet
    used: tuple[str, ...]
    level: Level
    message: str
    advice: str
    thread: str


@cache
def rows() -> tuple[Row, ...]:
    """All combinations."""
    return tuple(
        Row(
            row["package"],
            _affected(row["since"], row["before"]),
            tuple(row["with"]),
            Level(row["level"]),
            row["message"],
            row["advice"],
            row["thread"],
        )
        for row in _content()["row"]
    )


def _affected(since: str, before: str) -> SpecifierSet:
    return SpecifierSet(",".join([*([f">={since}"] if since else []), *([f"<{before}"] if before else [])]))


def judge(data: bytes, path: str, spoken: Collection[str]) -> Iterator[Finding]:
    """The findings about the requirements in a file. ``spoken`` are the rules that found something in the project."""
    text = data.decode("utf-8", errors="replace")
    for match in _LINE.finditer(text):
        version = _installed(match["name"], match["text"].strip().rstrip(","))
        if version is None:
            continue
        line = text.count("\n", 0, match.start("text")) + 1
        column = match.start("text") - text.rfind("\n", 0, match.start("text")) - 1
        for row in rows():
            used = any(rule.startswith(row.used) for rule in spoken)
            if row.package == match["name"] and used and version in row.affected:
                message = f"this {row.message.format(version=version)}"
                end = column + len(match["text"].rstrip())
                advice = f"{row.advice} ({row.thread})"
                yield Finding(RULE, NAME, path, line, column, line, end, row.level, message, advice)


def _installed(name: str, requirement: str) -> Version | None:
    """The newest known release that a requirement allows, or the one that it pins; None if it cannot be read."""
    # conda pins with one sign.
    requirement = re.sub(r"(?<![=<>!~])=(?!=)", "==", requirement)
    try:
        specifier = Requirement(requirement).specifier
    except InvalidRequirement:
        return None
    pinned = [one.version for one in specifier if one.operator in ("==", "===") and "*" not in one.version]
    if pinned:
        return Version(pinned[0])
    known = [Version(one) for one in _content()["releases"][name]]
    return max((one for one in known if one in specifier), default=None)


@cache
def _content() -> dict:  # type: ignore[type-arg]
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = files("fsdp_migrate.configs").joinpath("versions.toml").read_text(encoding="utf-8")
    content: dict = toml.loads(text)  # type: ignore[type-arg]
    return content
