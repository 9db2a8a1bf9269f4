"""Combinations of versions that are silent or break (``versions.toml``), in the requirements of a project."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from fsdp_migrate.tree.requirements import required, text_in
from fsdp_rules.verdict.finding import Finding, Level

RULE, NAME = "FSDP571", "versions"
DOC = """\
Required framework versions that do not match the project's FSDP.

Requirements in requirements files, pyproject.toml, setup.cfg, setup.py, Pipfile, conda's environment files and the lock
files of poetry, uv, pdm and pipenv are read, together with what the other rules found in the project. A requirement
without an upper bound counts as the newest release that this tool knows. If its upper bound is older than all releases
that this tool knows, it counts as that bound. fsdp_migrate/configs/versions.toml lists the combinations, each with the
public thread that shows it.
"""


@dataclass(frozen=True)
class Row:
    """One combination: ``package`` from ``since`` to before ``before``, where one of the rules ``used`` has spoken.

    ``optimizer``: the implementation of torch's optimizers that it is about, "" for others.
    """

    package: str
    affected: SpecifierSet
    used: tuple[str, ...]
    level: Level
    message: str
    advice: str
    thread: str
    optimizer: str


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
            row.get("optimizer", ""),
        )
        for row in _content()["row"]
    )


def _affected(since: str, before: str) -> SpecifierSet:
    return SpecifierSet(",".join([*([f">={since}"] if since else []), *([f"<{before}"] if before else [])]))


def of_optimizer(implementation: str, torch: str) -> Iterator[str]:
    """What is known of torch's optimizers of an implementation ("foreach", "fused", "for-loop") in a release."""
    version = Version(Version(torch).base_version)
    for row in rows():
        if row.optimizer == implementation and version in row.affected:
            message = row.message.format(version=version).removeprefix("allows ")
            yield f"the optimizer runs {implementation} under {message}. {row.advice} ({row.thread})"


def judge(data: bytes, path: str, spoken: Collection[str]) -> Iterator[Finding]:
    """The findings about the requirements in a file. ``spoken`` are the rules that found something in the project."""
    text = text_in(data)
    for one in required(text, path.rpartition("/")[2]):
        version = one.newest
        if version is None:
            continue
        line = text.count("\n", 0, one.start) + 1
        column = one.start - text.rfind("\n", 0, one.start) - 1
        for row in _rows_for(one.package, version, spoken):
            message = f"this {row.message.format(version=version)}"
            advice = f"{row.advice} ({row.thread})"
            end = column + one.end - one.start
            yield Finding(RULE, NAME, path, line, column, line, end, row.level, message, advice)


def _rows_for(package: str, version: Version, spoken: Collection[str]) -> Iterator[Row]:
    for row in rows():
        if row.package == package and version in row.affected and any(rule.startswith(row.used) for rule in spoken):
            yield row


@cache
def _content() -> dict:  # type: ignore[type-arg]
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = files("fsdp_migrate.configs").joinpath("versions.toml").read_text(encoding="utf-8")
    content: dict = toml.loads(text)  # type: ignore[type-arg]
    return content
