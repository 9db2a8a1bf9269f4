"""Which files of a tree a wrapped model can reach, found by the names under which it leaves those that are indexed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from fsdp_rules.project.exports import by_suffix
from fsdp_rules.project.places import module_name
from fsdp_rules.project.programs import closure

_WORD = re.compile(rb"[.\w]+")
_DYNAMIC = re.compile(rb"import_module\(\s*[frb]?[\"']([.\w]+)")


def imports_of(path: str, data: bytes) -> frozenset[str]:
    """The modules and names that the source ``data`` imports, fully dotted as far as its text says; a byte search."""
    parts = module_name(path).split(".")
    package = parts if path.endswith("__init__.py") else parts[:-1]
    found: set[str] = set()
    at = data.find(b"import")
    while at >= 0:
        found.update(_import_at(data, at, package))
        at = data.find(b"import", at + 6)
    return frozenset(found)


def _import_at(data: bytes, at: int, package: list[str]) -> Iterator[str]:
    # In a notebook a line of code is a string of JSON.
    before = data[data.rfind(b"\n", 0, at) + 1 : at].strip(b" \t\"',[")
    if data[at + 6 : at + 7] not in b" \t(":
        if (dynamic := _DYNAMIC.match(data, at)) is not None:
            yield dynamic[1].decode()
        return
    if before.startswith((b"from ", b"from\t")):
        base = before[5:].strip().decode("ascii", "ignore")
        module = _absolute(base, package)
        yield module
        rest = data[at + 6 : at + 4096]
        end = rest.find(b")") if rest.lstrip().startswith(b"(") else rest.find(b"\n")
        for name in _WORD.findall(rest[: end if end >= 0 else len(rest)]):
            yield f"{module}.{name.decode('ascii', 'ignore')}".strip(".")
    elif not before:
        end = data.find(b"\n", at)
        for name in _WORD.findall(data[at + 6 : end if end >= 0 else len(data)]):
            yield name.decode("ascii", "ignore")


def _absolute(module: str, package: list[str]) -> str:
    bare = module.lstrip(".")
    level = len(module) - len(bare)
    if not level:
        return bare
    return ".".join([*package[: len(package) - (level - 1)], *([bare] if bare else [])])


class Neighbours:
    """The files of a tree, each with those that it imports and that import it; ``imports`` is by path."""

    def __init__(self, imports: Mapping[str, frozenset[str]]) -> None:
        self.imports = imports
        self._known: dict[str, tuple[str, ...]] = {}

    @cached_property
    def modules(self) -> dict[str, tuple[str, ...]]:
        """The paths of the modules that an import path may mean."""
        paths: dict[str, list[str]] = defaultdict(list)
        for path in self.imports:
            paths[module_name(path)].append(path)
        return {
            suffix: tuple(path for module in modules for path in paths[module])
            for suffix, modules in by_suffix(paths).items()
        }

    def of(self, dotted: str) -> tuple[str, ...]:
        """The files of the module that ``dotted`` names, or that it names something in."""
        # The files of a tree import much the same modules, most of which are none of it.
        known = self._known.get(dotted)
        if known is None:
            outer = dotted
            while outer and not self.modules.get(outer):
                outer = outer.rpartition(".")[0]
            known = self._known[dotted] = self.modules.get(outer, ())
        return known

    def connected(self, start: Iterable[str]) -> set[str]:
        """``start``, and all files that are joined to one of them by imports, in either direction."""
        importers = self._importers
        joined: dict[str, set[str]] = defaultdict(set, {path: set(found) for path, found in importers.items()})
        for path, found in importers.items():
            for other in found:
                joined[other].add(path)
        return closure((path for path in start if path in self.imports), joined)

    def importing(self, start: Iterable[str]) -> dict[str, None]:
        """``start``, and all files that import one of them, directly or not, those with fewer steps first."""
        found: dict[str, None] = {}
        level = set(start)
        while level:
            found.update(dict.fromkeys(sorted(level)))
            level = {other for path in level for other in self._importers[path]}.difference(found)
        return found

    def imported(self) -> dict[str, set[str]]:
        """The files that each file imports, by path."""
        return self._imported

    @cached_property
    def _imported(self) -> dict[str, set[str]]:
        return {path: {other for name in names for other in self.of(name)} for path, names in self.imports.items()}

    @cached_property
    def _importers(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for path, others in self.imported().items():
            for other in others:
                found[other].add(path)
        return found
