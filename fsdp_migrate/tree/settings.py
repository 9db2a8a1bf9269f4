"""What a project asks for in ``[tool.fsdp-migrate]`` of its pyproject.toml."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.tree.regular import text_of
from fsdp_migrate.tree.selection import ALL_FILES, Selection
from fsdp_migrate.tree.toml import toml
from fsdp_migrate.tree.torch_release import TorchRelease, parse_release

TABLE = "fsdp-migrate"
TARGETS = ("native", "shim")
HELPERS = ("never", "needed", "always")
#: The levels of findings, from what needs no attention to what needs most of it.
LEVELS = ("info", "safe", "review", "manual")


class SettingsError(Exception):
    """A setting is wrong: says which, where, and what is possible."""


@dataclass(frozen=True)
class ProjectSettings:
    """Defaults for the options of the commands; None where the project says nothing.

    A setting is spelled as its option, with a dash. ``baseline`` is meant from the directory of the pyproject.toml.
    """

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    to: str | None = None
    helpers: str | None = None
    torch: TorchRelease | None = None
    jobs: int | None = None
    min_level: str | None = None
    baseline: Path | None = None
    files: Selection = ALL_FILES
    #: The pyproject.toml with the table.
    source: Path | None = field(default=None, compare=False)


#: The keys of the table; those of the second line make up ``files``.
KEYS = (
    *("select", "ignore", "to", "helpers", "torch", "jobs", "min-level", "baseline"),
    *("exclude", "extend-exclude", "include", "per-file-ignores"),
)


def load_first(targets: Iterable[Path]) -> ProjectSettings:
    """The settings of the first of ``targets`` whose project has any."""
    return next((found for found in map(load, targets) if found != ProjectSettings()), ProjectSettings())


def load(target: Path) -> ProjectSettings:
    """The settings of the nearest pyproject.toml upwards from ``target`` that has the table; empty if none has."""
    start = target.absolute()
    for directory in (start, *start.parents):
        file = directory / "pyproject.toml"
        if os.path.isfile(file):  # noqa: PTH113 - Path.is_file raises for a name that is too long
            table = _table(file)
            if table is not None:
                return _checked(table, file)
    return ProjectSettings()


def _table(file: Path) -> Mapping[str, object] | None:
    try:
        content = toml().loads(text_of(file))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"could not read {file}: {error}") from error
    tool = content.get("tool", {})
    table = tool.get(TABLE) if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise SettingsError(f"{file}: tool.{TABLE} must be a table")
    return table


def _checked(table: Mapping[str, object], file: Path) -> ProjectSettings:
    where = f"{file}: [tool.{TABLE}]"
    unknown = sorted(set(table) - set(KEYS))
    if unknown:
        near = difflib.get_close_matches(unknown[0].replace("_", "-").lower(), KEYS, n=1, cutoff=0.5)
        hint = f"the nearest is {near[0]!r}" if near else f"the settings are {', '.join(KEYS)}"
        raise SettingsError(f"{where} has no setting {unknown[0]!r}: {hint}")
    to, helpers, jobs = table.get("to"), table.get("helpers"), table.get("jobs")
    if to is not None and to not in TARGETS:
        raise SettingsError(f"{where} to = {to!r}: must be one of {', '.join(TARGETS)}")
    if helpers is not None and helpers not in HELPERS:
        raise SettingsError(f"{where} helpers = {helpers!r}: must be one of {', '.join(HELPERS)}")
    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise SettingsError(f"{where} jobs = {jobs!r}: must be a number from 1")
    level, baseline = table.get("min-level"), table.get("baseline")
    if level is not None and level not in LEVELS:
        raise SettingsError(f"{where} min-level = {level!r}: must be one of {', '.join(LEVELS)}")
    if baseline is not None and not isinstance(baseline, str):
        raise SettingsError(f"{where} baseline = {baseline!r}: must be the name of a file")
    return ProjectSettings(
        select=_names(table.get("select"), f"{where} select"),
        ignore=_names(table.get("ignore"), f"{where} ignore"),
        to=to if isinstance(to, str) else None,
        helpers=helpers if isinstance(helpers, str) else None,
        torch=_torch(table.get("torch"), where),
        jobs=jobs,
        min_level=level if isinstance(level, str) else None,
        baseline=None if baseline is None else file.parent / baseline,
        files=_files(table, file.parent, where),
        source=file,
    )


def _files(table: Mapping[str, object], base: Path, where: str) -> Selection:
    exclude, extend, include = (
        _names(table.get(key), f"{where} {key}", _PATTERNS) for key in ("exclude", "extend-exclude", "include")
    )
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise SettingsError(f"{where} per-file-ignores = {per_file!r}: must be a table of patterns, each with rule ids")
    pairs = tuple(
        (pattern, split_names(_names(rules, f"{where} per-file-ignores {pattern!r}") or ()))
        for pattern, rules in per_file.items()
    )
    patterns = (*(exclude or ()), *(extend or ()), *(include or ()), *per_file)
    if not patterns and exclude is None:
        return ALL_FILES
    _compile(patterns, where)
    return Selection(base.absolute(), exclude, extend or (), include or (), pairs)


def _compile(patterns: Iterable[str], where: str) -> None:
    from pathspec import GitIgnoreSpec

    for pattern in patterns:
        try:
            GitIgnoreSpec.from_lines([pattern])
        except ValueError as error:
            raise SettingsError(f"{where} has the pattern {pattern!r}, which .gitignore does not allow") from error


def _torch(value: object, where: str) -> TorchRelease | None:
    if value is None:
        return None
    try:
        return TorchRelease(parse_release(str(value)), f"torch in [tool.{TABLE}]")
    except ValueError as error:
        raise SettingsError(f"{where} torch = {value!r}: {error}") from error


_RULES = "rule ids, such as ['FSDP1', 'FSDP203']"
_PATTERNS = "patterns as in .gitignore, such as ['third_party/', 'old_*.py']"


def _names(value: object, where: str, kind: str = _RULES) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise SettingsError(f"{where} = {value!r}: must be a list of {kind}")
    return tuple(value)


def split_names(values: Sequence[str]) -> tuple[str, ...]:
    """Rule ids as typed: the option may be repeated, and each may hold several with commas."""
    return tuple(name.strip().upper() for value in values for name in value.split(",") if name.strip())
