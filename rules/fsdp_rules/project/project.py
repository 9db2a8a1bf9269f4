"""Facts that cross files: who re-exports FSDP1 names, and which names may hold a wrapped model.

:mod:`fsdp_rules.project.facts` reads one file, :class:`Project` joins those of a whole tree, and
:mod:`fsdp_rules.project.flow` follows a wrapped model from the
``FSDP(...)`` call; a step that is found by a bare name only makes the result "maybe".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from fsdp_rules.project.classes import Owners
from fsdp_rules.project.facts import INNER, FileFacts, index_source, module_name, place_key
from fsdp_rules.project.flow import Certainty, spread

__all__ = ["INNER", "Certainty", "FileFacts", "Project", "index_source", "module_name"]


@dataclass(frozen=True)
class Project:
    """The facts of a whole tree. ``held`` maps each place that may hold a wrapped model to how sure that is.

    ``methods`` are the names of all functions that the project defines inside a class (or a function), ``modules`` the
    modules that an import path may mean, by that path: an import need not start where the tree does. ``stars`` are the
    star imports: what is imported, the path of the file that does it, and the names that this file reads. ``owners``
    are the classes, ``switchers`` the context managers that set the kind of state, by their whole dotted names.
    """

    flags: frozenset[str]
    exports: dict[str, dict[str, str]]
    held: dict[str, Certainty]
    imported: frozenset[str]
    methods: frozenset[str] = field(default=frozenset())
    modules: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stars: tuple[tuple[str, str, frozenset[str]], ...] = field(default=())
    owners: Owners = field(default_factory=Owners)
    switchers: frozenset[str] = field(default=frozenset())

    @classmethod
    def build(cls, facts: Iterable[FileFacts]) -> Project:
        """Join the facts of all files."""
        files = sorted(facts, key=lambda fact: fact.path)
        exports = {file.module: dict(file.aliases) for file in files}
        return cls(
            flags=frozenset().union(*(file.flags for file in files)),
            exports=exports,
            held=spread(files),
            imported=frozenset().union(*(file.imported for file in files)),
            methods=frozenset(
                qualified.rpartition(".")[2] for file in files for qualified in file.functions if "." in qualified
            ),
            modules=_by_suffix(exports),
            stars=tuple((module, file.path, file.reads) for file in files for module in sorted(file.starred)),
            owners=Owners.build(files),
            switchers=frozenset(f"{file.module}.{name}" for file in files for name in file.switchers),
        )

    def resolve(self, dotted: str) -> str:
        """``dotted`` with re-exports of this project followed to where they come from."""
        # Each import is followed once: a package that takes a name from its module of that name would never end.
        followed: set[str] = set()
        while not dotted.startswith("torch."):
            head, _, name = dotted.rpartition(".")
            tail: list[str] = []
            target = self._exported(head, name)
            while target is None and head and head not in self.modules:
                tail.insert(0, name)
                head, _, name = head.rpartition(".")
                target = self._exported(head, name)
            if target is None or target in followed:
                break
            followed.add(target)
            dotted = ".".join([target, *tail])
        return dotted

    def _exported(self, module: str, name: str) -> str | None:
        for candidate in self.modules.get(module, ()):
            if name in self.exports[candidate]:
                return self.exports[candidate][name]
        return None

    def holds(self, path: str, scope: str, text: str) -> Certainty:
        """How sure it is that the dotted name ``text`` in ``scope`` (a qualified function name) is a wrapped model."""
        best = Certainty.NO
        scopes = [scope]
        while scopes[-1]:
            scopes.append(scopes[-1].rpartition(".")[0])
        for candidate in scopes:
            best = max(best, self.held.get(f"var:{place_key(path)}:{candidate}:{text}", Certainty.NO))
        if "." in text and not self._is_own(path, scope, text):
            attribute = self.held.get(f"attr:{text.rpartition('.')[2]}", Certainty.NO)
            best = max(best, min(attribute, Certainty.MAYBE))
        if best is Certainty.NO and text.endswith(INNER):
            return self.holds(path, scope, text.rpartition(".")[0])
        return best

    def _is_own(self, path: str, scope: str, text: str) -> bool:
        """Whether ``text`` is ``self.x`` of a class that gives itself an ``x``, which is never a wrapped model."""
        if not text.startswith("self.") or text.count(".") > 1 or f"set:{text[5:]}" in self.held:
            return False
        places = self.owners.places(path, scope, text)
        return any(place in self.owners.assigned for place in places) and not any(
            place in self.held for place in places
        )

    def touches(self, path: str) -> bool:
        """Whether some name in the file at ``path`` may hold a wrapped model."""
        prefix = f"var:{place_key(path)}:"
        return any(place.startswith(prefix) for place in self.held)

    def switches(self, dotted: str) -> bool:
        """Whether ``dotted``, an import path and a name, is a context manager that sets the kind of state."""
        return any(name == dotted or name.endswith(f".{dotted}") for name in self.switchers)

    def may_return_wrapped(self, name: str) -> bool:
        """Whether some function of the project called ``name`` may return a wrapped model."""
        return name in self._returning

    @cached_property
    def _returning(self) -> frozenset[str]:
        returns = (place for place in self.held if place.startswith("ret:"))
        return frozenset(place.split(":")[2].rpartition(".")[2] for place in returns)

    def called_on(self, method: str) -> Certainty:
        """How sure it is that a wrapped model is what ``method``, one that groups parameters, is called on."""
        return self.held.get(f"on:{method}", Certainty.NO)

    @cached_property
    def _imported_by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for entry in self.imported:
            if not entry.startswith("torch."):
                found[entry.rpartition(".")[2]].append(entry)
        return found

    def imports_from(self, path: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether some file of the project imports ``name`` from the file at ``path``.

        A star import does where its file reads the name or passes it on.
        """
        module = module_name(path)
        tail = module.rpartition(".")[2]
        entries = self._imported_by_name.get(name, ())
        if any(entry == f"{module}.{name}" or entry.endswith(f"{tail}.{name}") for entry in entries):
            return True
        return any(
            name in reads or (importer not in seen and self.imports_from(importer, name, seen | {path}))
            for starred, importer, reads in self.stars
            if starred.endswith(tail) and not starred.startswith("torch.")
        )


def _by_suffix(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        rest = name
        while rest:
            found[rest].append(name)
            rest = rest.partition(".")[2]
    return {suffix: tuple(modules) for suffix, modules in found.items()}
