"""How long a project allows its lines to be, as its formatters and editors are told."""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsdp_migrate.tree.regular import text_of
from fsdp_migrate.tree.toml import toml
from fsdp_migrate.tree.upwards import upwards

#: What ruff and black keep to where a project configures them and says nothing of lines.
_FORMATTERS = 88
#: Sections of ini files, and the key in each.
_INI = {"flake8": "max-line-length", "pycodestyle": "max-line-length", "pylint.format": "max-line-length"}


def line_length(target: Path) -> int | None:
    """The longest line that the project around ``target`` allows; None where nothing says.

    Of the nearest directory upwards that says something: ruff, black, flake8 and its like, then .editorconfig.
    """
    for directory in upwards(target):
        found = next((length for length in _lengths(directory) if length > 0), None)
        if found is not None:
            return found
    return _of_editor(target.absolute())


def _lengths(directory: Path) -> Iterator[int]:
    for name in ("ruff.toml", ".ruff.toml"):
        if (table := _table(directory / name)) is not None:
            yield _number(table.get("line-length"), _FORMATTERS)
    tool = (_table(directory / "pyproject.toml") or {}).get("tool", {})
    for name, key in (("ruff", "line-length"), ("black", "line-length"), ("flake8", "max-line-length")):
        if isinstance(tool, dict) and isinstance(tool.get(name), dict):
            yield _number(tool[name].get(key), 0 if name == "flake8" else _FORMATTERS)
    for name in (".flake8", "setup.cfg", "tox.ini", ".pylintrc"):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(text_of(directory / name))
            yield from (parser.getint(part, key) for part, key in _INI.items() if parser.has_option(part, key))
        except (configparser.Error, OSError, ValueError):
            continue


def _table(file: Path) -> dict[str, Any] | None:
    try:
        return toml().loads(text_of(file))
    except (OSError, ValueError, RecursionError):
        return None


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _of_editor(target: Path) -> int | None:
    import editorconfig

    # The library waits for a pipe of that name.
    if any(_is_no_file(directory / ".editorconfig") for directory in (target, *target.parents)):
        return None
    try:
        file = target / "module.py" if target.is_dir() else target
        length = editorconfig.get_properties(str(file)).get("max_line_length", "")
    except (editorconfig.EditorConfigError, OSError, ValueError):
        return None
    return int(length) if length.isdigit() else None


def _is_no_file(path: Path) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113 - for names that are too long
