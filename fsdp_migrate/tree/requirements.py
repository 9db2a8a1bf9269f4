"""What the files of a project require, in whichever format they have it."""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from fsdp_migrate.tree.formats.entry import Entry, Include
from fsdp_migrate.tree.regular import read_regular
from fsdp_migrate.tree.requirement_files import Kind, kind_of
from fsdp_migrate.tree.upwards import upwards

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

#: Releases around which something changes, up to the newest that is known: a requirement without a bound installs it.
RELEASES = {
    "transformers": ("4.57.6", "5.0.0", "5.8.0", "5.9.0", "5.10.1", "5.23.0"),
    "accelerate": ("0.34.2", "1.5.2", "1.9.0", "1.12.0", "1.13.0", "1.14.0", "1.15.0"),
    "torch": ("2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0"),
}
_FOLDERS = ("", "requirements", "docker")
#: Signs of a file that names another one.
_INCLUDES = re.compile(r"^\s*-(?:r|c|-requirement|-constraint)|\bfile\s*[:=]", re.MULTILINE)
_BOM_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Required:
    """One requirement: the releases that it allows, and its place from ``start`` to ``end`` in the text."""

    package: str
    allowed: SpecifierSet
    start: int
    end: int

    @property
    def least(self) -> Version | None:
        """The oldest release that it names as allowed; None where older ones have no bound."""
        return max((version for sign, version in self._bounds() if sign in _FROM), default=None)

    @property
    def newest(self) -> Version | None:
        """The release that it pins, or the newest of those known that it allows, or the bound where it knows none."""
        pins = [one.version for one in self.allowed if one.operator in ("==", "===") and "*" not in one.version]
        if pins:
            return Version(pins[0])
        known = [one for one in map(Version, RELEASES[self.package]) if one in self.allowed]
        named = [_before(version) if sign == "<" else version for sign, version in self._bounds() if sign != "!="]
        inside = [one for one in named if one in self.allowed]
        return max(known or inside or named, default=None)

    def _bounds(self) -> list[tuple[str, Version]]:
        return [(one.operator, Version(one.version.removesuffix(".*"))) for one in self.allowed]


#: Operators that say which release is the least.
_FROM = frozenset({">=", "==", "===", "~=", ">"})


@dataclass(frozen=True)
class Listed:
    """A requirement, and the file that has it, as it is called from the directory that was looked at."""

    required: Required
    file: str
    kind: Kind


def text_in(data: bytes) -> str:
    """The text of a file of requirements; Windows' shell writes them as UTF-16."""
    text = data.decode("utf-16" if data.startswith(_BOM_16) else "utf-8-sig", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def required(text: str, name: str) -> Iterator[Required]:
    """The requirements in the file ``name``; what no reader of requirements would take is left out."""
    seen: dict[str, int] = {}
    for one in _entries(text, name):
        if isinstance(one, Entry) and one.name in RELEASES:
            start, end = _place(text, one, seen.get(one.pattern, 0))
            seen[one.pattern] = end
            yield Required(one.name, one.allowed, start, end)


def newest_allowed(target: Path, package: str) -> Version | None:
    """The newest release that the project around ``target`` allows, or its pin; None where it says nothing.

    The nearest directory upwards that requires the package counts; where its files differ, the oldest answer does.
    What a Dockerfile installs counts where no other file has an answer.
    """
    for directory in upwards(target):
        found = listed(directory, package)
        known = [(one.kind is Kind.HINT, version) for one in found if (version := one.required.newest) is not None]
        if known:
            return min(known)[1]
    return None


def listed(directory: Path, package: str) -> list[Listed]:
    """What the files of ``directory`` require of ``package``; included files are read with the one that names them."""
    found = []
    for folder in _FOLDERS:
        for path in _files(directory / folder):
            name = path.relative_to(directory).as_posix()
            kind = kind_of(f"{directory.name}/{name}")
            if kind is not None and (folder != "docker" or kind is Kind.HINT):
                found += [Listed(one, name, kind) for one in _read(path, package, frozenset())]
    return found


def _read(path: Path, package: str, above: frozenset[Path]) -> list[Required]:
    try:
        text = text_in(read_regular(path))
    except OSError:
        return []
    inside = [one for one in _entries(text, path.name) if isinstance(one, Include)]
    found = [one for one in required(text, path.name) if one.package == package]
    narrowing: list[Required] = []
    for one in inside:
        other = path.parent / one.path
        if other in above or "://" in one.path:
            continue
        (narrowing if one.constrains else found).extend(_read(other, package, above | {path}))
    for constraint in narrowing:
        found = [replace(one, allowed=one.allowed & constraint.allowed) for one in found]
    return found


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []


def _entries(text: str, name: str) -> Iterable[Entry | Include]:
    """What a reader finds; a file that is broken, or concerns none of the packages, says nothing."""
    if not any(package in text for package in RELEASES) and not _INCLUDES.search(text):
        return []
    try:
        return list(_reader(name)(text))
    except (ValueError, SyntaxError, RecursionError, configparser.Error):
        return []


def _reader(name: str) -> Callable[[str], Iterator[Entry | Include] | Iterator[Entry]]:
    from fsdp_migrate.tree.formats import lock_files, pip_lines, project_files

    by_name = {
        "pyproject.toml": project_files.project_table,
        "Pipfile": project_files.project_table,
        "Pipfile.lock": lock_files.pipfile_lock,
        "setup.cfg": project_files.setup_cfg,
        "setup.py": project_files.setup_py,
    }
    kind = kind_of(name)
    if name in by_name:
        return by_name[name]
    if kind is Kind.LOCK:
        return lock_files.lock_table
    if kind is Kind.HINT:
        return pip_lines.dockerfile
    return project_files.environment if name.endswith((".yml", ".yaml")) else pip_lines.pip_lines


def _place(text: str, entry: Entry, after: int) -> tuple[int, int]:
    """Where ``entry`` is in its file; comments are passed over."""
    starts = sum(map(len, text.splitlines(keepends=True)[: entry.line - 1]))
    for found in re.compile(entry.pattern, re.MULTILINE).finditer(text, max(starts, after)):
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if "#" not in line:
            return found.span()
    return starts, starts


def _before(version: Version) -> Version:
    """The release before ``version``, by its numbers alone."""
    parts = list(version.release)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    parts[-1] = max(parts[-1] - 1, 0)
    return Version(".".join(map(str, parts)))
