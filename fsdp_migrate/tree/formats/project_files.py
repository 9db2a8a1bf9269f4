"""What the files of packaging tools list: pyproject.toml, Pipfile, setup.cfg, setup.py and conda's environments."""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterator
from typing import Any

from fsdp_migrate.tree.formats.entry import Entry, Include
from fsdp_migrate.tree.formats.pip_lines import pip_lines
from fsdp_migrate.tree.formats.requirement_entry import conda, requirement, strings, table_entry
from fsdp_migrate.tree.toml import toml

#: Tables of which a file holds what is needed to build the project, not to run it.
_BUILD = "build-system"
#: Arguments of setup() that list words of other kinds.
_OTHER_LISTS = frozenset({"classifiers", "keywords", "packages", "py_modules", "scripts"})


def project_table(text: str) -> Iterator[Entry | Include]:
    """pyproject.toml and Pipfile: PEP 621, dependency groups, poetry, pdm, uv, hatch, pixi and pipenv.

    Whatever the tool, its requirements are in lists of PEP 508, or in tables by names, below a key that says so.
    """
    pending: list[tuple[str, object]] = [(key, value) for key, value in toml().loads(text).items() if key != _BUILD]
    while pending:
        path, value = pending.pop(0)
        if not isinstance(value, dict):
            continue
        for key, inner in value.items():
            below = f"{path}.{key}"
            if not _lists(below):
                pending.append((below, inner))
            elif isinstance(inner, list):
                yield from _of_list(inner)
            elif isinstance(inner, dict) and below.startswith("tool.setuptools.dynamic"):
                yield from (Include(name) for name in strings(inner.get("file")))
            elif isinstance(inner, dict):
                yield from _of_table(inner)
        if _lists(path):
            yield from _of_table(value)


def _lists(path: str) -> bool:
    return "dependenc" in path or path in ("packages", "dev-packages")


def _of_list(values: list[object]) -> Iterator[Entry]:
    for text in strings(values):
        found = requirement(text)
        if found is not None:
            yield found


def _of_table(table: dict[str, Any]) -> Iterator[Entry]:
    """Names with versions, and below other names lists or such tables again, as groups and extras have them."""
    for name, value in table.items():
        for one in value if isinstance(value, list) else [value]:
            found = None
            if isinstance(one, dict) and not _VERSIONED.isdisjoint(one):
                found = table_entry(name, one.get("version") or str(one.get("tag", "*")).removeprefix("v"))
            elif isinstance(one, dict):
                yield from _of_table(one)
            elif isinstance(one, str):
                found = requirement(one) if isinstance(value, list) else table_entry(name, one)
            if found is not None:
                yield found


_VERSIONED = frozenset({"version", "git", "url", "path", "extras", "optional", "markers", "index", "source"})


def setup_cfg(text: str) -> Iterator[Entry | Include]:
    """setup.cfg, with the files that it names in place of lines."""
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text)
    values = [parser.get("options", "install_requires", fallback="")]
    if parser.has_section("options.extras_require"):
        values += [value for _, value in parser.items("options.extras_require")]
    for value in values:
        if value.strip().startswith("file:"):
            yield from (Include(name.strip()) for name in value.strip().removeprefix("file:").split(","))
        else:
            yield from pip_lines(value.replace(";;", ";"))


def setup_py(text: str) -> Iterator[Entry | Include]:
    """The literals of setup.py: what has a version wherever it is, and the bare names of a list of requirements."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(text), False)]
    while pending:
        node, listed = pending.pop(0)
        if isinstance(node, ast.keyword) and node.arg in _OTHER_LISTS:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            found = requirement(node.value, node.lineno)
            if found is not None and (listed or found.allowed):
                yield found
            continue
        is_list = isinstance(node, ast.List | ast.Tuple | ast.Set)
        pending += [(child, is_list) for child in ast.iter_child_nodes(node)]


def environment(text: str) -> Iterator[Entry | Include]:
    """conda's environment.yml, the words for pip in it included."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from error
    listed = content.get("dependencies") if isinstance(content, dict) else None
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, str):
            found = conda(one)
            if found is not None:
                yield found
        elif isinstance(one, dict):
            yield from pip_lines("\n".join(strings(one.get("pip"))))
