"""Which files of a tree may run in one program, by what each of them imports."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

_PROGRAM = re.compile(rb"\b__main__\b")
#: What a script does as it is read: it loops, reads its arguments, joins the other ranks or calls what trains.
_SCRIPT = re.compile(
    rb"^(?:(?:for|while)\b.*:[ \t]*(?:#.*)?$"
    rb"|(?:[\w.,* ]+=[ \t]*)?[\w.]*\b(?:parse_args|init_process_group|init_device_mesh|main|train|Fire)[ \t]*\()",
    re.MULTILINE,
)
#: What loads a module whose name only the running program has.
_LOADS = re.compile(
    rb"\b(?:import_module|__import__|instantiate|entry_points|spec_from_\w+|iter_modules|walk_packages|locate"
    rb"|run_module|run_path|load_module|LightningCLI|\w*[Rr]egistry|build_from_cfg)[ \t]*\("
    rb"|(?<![.\w])(?:exec|eval)[ \t]*\("
    # What projects call their own: load_class(path), dynamic_import(name), get_object(name).
    rb"|\b(?:build|create|dynamic|find|get|import|load|resolve)_(?:class|cls|fn|from_\w+|func|function|import|method"
    rb"|module|modules|object|obj|plugin|plugins|string|symbol|target)[ \t]*\("
    # Configurations that name what is called.
    rb"|\bhydra\b|\bgin\.|\b_target_\b"
)
_TEST = re.compile(r"(?:test_.*|.*_test|conftest)\.py")


@dataclass(frozen=True)
class Programs:
    """``imports`` are the files that each file of the tree imports, by path. ``mains`` are run by themselves,
    ``loaders`` load modules by names that they are given.
    """

    imports: Mapping[str, Set[str]] = field(default_factory=dict)
    mains: frozenset[str] = frozenset()
    loaders: frozenset[str] = frozenset()

    @classmethod
    def of(cls, imports: Mapping[str, Set[str]], sources: Iterable[tuple[str, bytes]]) -> Programs:
        """From what each file imports, and the path and the bytes of each; a plain search.

        A file that nothing imports, and that works as it is read, is a program without saying ``__main__``.
        """
        imported: set[str] = set().union(*imports.values())
        mains: set[str] = set()
        loaders: set[str] = set()
        for path, data in sources:
            is_script = path not in imported and _SCRIPT.search(data.replace(b"\r", b"")) is not None
            if is_script or path.endswith(".ipynb") or _PROGRAM.search(data) is not None:
                mains.add(path)
            if _LOADS.search(data) is not None:
                loaders.add(path)
        return cls(imports, frozenset(mains), frozenset(loaders))

    def may_share(self, first: str, second: str) -> bool:
        """Whether some program may run both files; also where one is not known.

        A file does that imports both, directly or not. Else both must be of no program of the tree, for others to
        import, or one of them, and the other's program loads what it is given the name of.
        """
        if first == second or first not in self.imports or second not in self.imports:
            return True
        if second in self._beside(first):
            return True
        open_first, open_second = first in self._open, second in self._open
        if open_first and open_second:
            return True
        return (open_first and second in self._loading) or (open_second and first in self._loading)

    def apart_from(self, path: str) -> frozenset[str]:
        """All files that no program runs together with the file at ``path``, as :meth:`may_share` says of each."""
        if path not in self.imports:
            return frozenset()
        beside = self._beside(path) | (self._open if path in self._loading else set())
        if path in self._open:
            beside = beside | self._open | self._loading
        return frozenset(self.imports.keys() - beside)

    def _beside(self, path: str) -> Set[str]:
        """All files that are imported by one which imports the file at ``path``, directly or not."""
        if path not in self._known:
            self._known[path] = closure(closure([path], self._importers), self.imports)
        return self._known[path]

    @cached_property
    def _loading(self) -> Set[str]:
        """The files that some program runs together with one which loads modules by names."""
        return closure(closure(self.loaders, self._importers), self.imports)

    @cached_property
    def _open(self) -> Set[str]:
        """The files that what is outside of the tree, or only known when it runs, may import.

        A file that only tests import is there for somebody else; a test is not.
        """
        return closure((path for path in self.imports if path not in self._run and not _is_test(path)), self.imports)

    @cached_property
    def _known(self) -> dict[str, Set[str]]:
        return {}

    @cached_property
    def _run(self) -> Set[str]:
        """What the programs of the tree import, themselves included."""
        return closure((path for path in self.mains if not _is_test(path)), self.imports)

    @cached_property
    def _importers(self) -> Mapping[str, Set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for path, imported in self.imports.items():
            for other in imported:
                found[other].add(path)
        return found


def _is_test(path: str) -> bool:
    return _TEST.fullmatch(PurePosixPath(path).name) is not None


def closure(start: Iterable[str], steps: Mapping[str, Set[str]]) -> set[str]:
    """``start``, and everything that steps lead to from there."""
    found: set[str] = set()
    pending = list(start)
    while pending:
        path = pending.pop()
        if path not in found:
            found.add(path)
            pending += steps.get(path, set()) - found
    return found
