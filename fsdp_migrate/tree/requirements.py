"""What the files of a project require, in all forms: lines, tables of poetry, literals of setup.py, lock files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from fsdp_migrate.tree.regular import text_of
from fsdp_migrate.tree.upwards import upwards

#: Releases around which something changes, up to the newest that is known: a requirement without a bound installs it.
RELEASES = {
    "transformers": ("4.57.6", "5.0.0", "5.8.0", "5.9.0", "5.10.1", "5.23.0"),
    "accelerate": ("0.34.2", "1.5.2", "1.9.0", "1.12.0", "1.13.0", "1.14.0", "1.15.0"),
    "torch": ("2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0"),
}
#: Files that list requirements or what was installed for them, those of a folder ``requirements`` included.
_FILES = re.compile(
    r"(^|/)(pyproject\.toml|setup\.cfg|Pipfile(\.lock)?|(poetry|uv|pdm)\.lock|pylock[\w.-]*\.toml|"
    r"(conda|environment)[\w.-]*\.ya?ml|requirements[\w.-]*\.(txt|in)|requirements/[\w.-]+\.(txt|in))$"
)
_LOCKS = re.compile(r"(poetry|uv|pdm)\.lock$|pylock[\w.-]*\.toml$")
_NAMES = "|".join(RELEASES)
#: A requirement on a line of its own, in quotes, or as an item of a list.
_LINE = re.compile(rf"^[\s\-\"']*(?P<text>(?P<name>{_NAMES})(?![\w-])[^#\"';=]*[^#\"';]*)", re.MULTILINE)
#: poetry's and Pipfile's tables, by their versions.
_ENTRY = re.compile(
    rf"^(?P<text>(?P<name>{_NAMES})\s*=\s*(?:\{{[^}}\n]*?version\s*=\s*)?[\"'](?P<version>[^\"']*)[\"'])", re.MULTILINE
)
_LOCKED = re.compile(rf"^name\s*=\s*\"(?P<name>{_NAMES})\"\s*\nversion\s*=\s*\"(?P<version>[^\"]+)\"", re.MULTILINE)
_PIPFILE = re.compile(rf"\"(?P<name>{_NAMES})\"\s*:\s*\{{[^{{}}]*?\"version\"\s*:\s*\"==(?P<version>[^\"]+)\"")


@dataclass(frozen=True)
class Required:
    """One requirement: the releases that it allows, and its place from ``start`` to ``end`` in the text."""

    package: str
    allowed: SpecifierSet
    start: int
    end: int

    @property
    def newest(self) -> Version | None:
        """The release that it pins, or the newest of those known that it allows; None if it allows none."""
        pins = [one.version for one in self.allowed if one.operator in ("==", "===") and "*" not in one.version]
        if pins:
            return Version(pins[0])
        return max((one for one in map(Version, RELEASES[self.package]) if one in self.allowed), default=None)


def is_requirements(path: str) -> bool:
    """Whether a file of this path, with ``/`` between its parts, lists requirements."""
    return _FILES.search(path) is not None


def required(text: str, name: str) -> Iterator[Required]:
    """The requirements in the file ``name``; what no reader of requirements would take is left out."""
    if name == "setup.py":
        yield from _of_setup(text)
    elif _LOCKS.search(name):
        yield from _matches(_LOCKED, text, lambda match: f"=={match['version']}")
    elif name == "Pipfile.lock":
        yield from _matches(_PIPFILE, text, lambda match: f"=={match['version']}")
    else:
        if name in ("Pipfile", "pyproject.toml"):
            yield from _matches(_ENTRY, text, lambda match: _poetry(match["version"]))
        yield from _matches(_LINE, text, lambda match: _specifier(match["text"]))


def newest_allowed(target: Path, package: str) -> Version | None:
    """The newest release that the project around ``target`` allows, or its pin; None where it says nothing.

    The nearest directory upwards that requires the package counts; where its files differ, the oldest answer does.
    """
    for directory in upwards(target):
        found = []
        for path in _files(directory):
            try:
                text = text_of(path, "replace")
            except OSError:
                continue
            found += [one.newest for one in required(text, path.name) if one.package == package]
        known = [version for version in found if version is not None]
        if known:
            return min(known)
    return None


def _files(directory: Path) -> list[Path]:
    found = [*_entries(directory), *_entries(directory / "requirements")]
    return [path for path in found if path.name == "setup.py" or is_requirements(path.as_posix())]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_file())
    except OSError:
        return []


def _matches(pattern: re.Pattern[str], text: str, specifier: object) -> Iterator[Required]:
    for match in pattern.finditer(text):
        allowed = _parsed(specifier(match))  # type: ignore[operator]
        if allowed is not None:
            start = match.start("text") if "text" in pattern.groupindex else match.start("name")
            end = start + len(match["text"].rstrip()) if "text" in pattern.groupindex else match.end("version")
            yield Required(match["name"], allowed, start, end)


def _of_setup(text: str) -> Iterator[Required]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        match = re.match(rf"(?P<name>{_NAMES})(?![\w-])", node.value)
        allowed = _parsed(_specifier(node.value)) if match else None
        if match and allowed is not None:
            start = starts[node.lineno - 1] + node.col_offset
            yield Required(match["name"], allowed, start, start + len(node.value) + 2)


def _specifier(requirement: str) -> str | None:
    """The specifier of a requirement as pip or conda writes it, which pins with one sign."""
    requirement = re.sub(r"(?<![=<>!~])=(?!=)", "==", requirement.split(";")[0].strip().rstrip(",").strip())
    try:
        return str(Requirement(requirement).specifier)
    except InvalidRequirement:
        return None


def _poetry(version: str) -> str | None:
    """poetry's carets and tildes as a specifier."""
    found = re.fullmatch(r"\s*([\^~])\s*(\d+)((?:\.\d+)*)\s*", version)
    if not found:
        return "" if version.strip() == "*" else re.sub(r"^(?=\d)", "==", version.strip())
    parts = [int(part) for part in (found[2] + found[3]).split(".")]
    kept = 1 if found[1] == "^" or len(parts) == 1 else 2
    while found[1] == "^" and kept < len(parts) and not any(parts[:kept]):
        kept += 1
    upper = ".".join(map(str, [*parts[: kept - 1], parts[kept - 1] + 1]))
    return f">={'.'.join(map(str, parts))},<{upper}"


def _parsed(specifier: str | None) -> SpecifierSet | None:
    if specifier is None:
        return None
    try:
        made = SpecifierSet(specifier)
        [Version(one.version.removesuffix(".*")) for one in made]
    except (InvalidVersion, ValueError):
        return None
    return made
