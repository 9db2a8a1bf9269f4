"""Whose attribute ``self.x`` is: that of a class, of those it inherits from and of those that inherit from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.places import scopes
from fsdp_rules.project.programs import Programs

#: A class: the file it stands in (as in a place), and its qualified name.
Owner = tuple[str, str]


@dataclass(frozen=True)
class Owners:
    """The classes of a project, by last name, with their bases.

    ``methods`` are the functions that each class defines, ``supers`` those of its bases that it calls, ``attributes``
    the files that assign or define an attribute, by its last name, ``programs`` which files may run together: a
    class of the same name in another program is no base.
    """

    classes: Mapping[str, tuple[Owner, ...]] = field(default_factory=dict)
    bases: Mapping[Owner, tuple[str, ...]] = field(default_factory=dict)
    methods: Mapping[Owner, frozenset[str]] = field(default_factory=dict)
    supers: Mapping[Owner, frozenset[str]] = field(default_factory=dict)
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    programs: Programs = field(default_factory=Programs)

    @classmethod
    def build(cls, files: Iterable[FileFacts], programs: Programs) -> Owners:
        """Join the classes of all files."""
        classes: dict[str, list[Owner]] = defaultdict(list)
        bases: dict[Owner, tuple[str, ...]] = {}
        methods: dict[Owner, set[str]] = defaultdict(set)
        supers: dict[Owner, frozenset[str]] = {}
        attributes: dict[str, set[str]] = defaultdict(set)
        for file in files:
            for name in file.attributes:
                attributes[name].add(file.path)
            for qualified, names in file.classes.items():
                owner = (file.path, qualified)
                classes[qualified.rpartition(".")[2]].append(owner)
                bases[owner] = tuple(name.rpartition(".")[2] for name in names)
                supers[owner] = file.supers.get(qualified, frozenset())
            for qualified in file.functions:
                outer, _, name = qualified.rpartition(".")
                methods[file.path, outer].add(name)
        return cls(
            {name: tuple(owners) for name, owners in classes.items()},
            bases,
            {owner: frozenset(names) for owner, names in methods.items()},
            supers,
            {name: frozenset(paths) for name, paths in attributes.items()},
            programs,
        )

    def assigns(self, name: str, path: str) -> bool:
        """Whether some program of the file at ``path`` assigns or defines an attribute ``name``."""
        return any(self.programs.may_share(path, one) for one in self.attributes.get(name, ()))

    def family(self, path: str, scope: str) -> set[Owner]:
        """The class around ``scope`` and its family: every class whose attribute ``self.x`` may be there.

        A subclass that has a method of its own for the one in ``scope``, and never calls this one, is not meant.
        """
        owner = self._around(path, scope)
        if owner is None:
            return set()
        method = scope[len(owner[1]) + 1 :].partition(".")[0]
        family = self._reached(owner, lambda one: self._above.get(one, ()))
        return family | self._reached(
            owner, lambda one: (other for other in self._below.get(one, ()) if self._runs(other, method))
        )

    def may_have(self, path: str, scope: str, method: str) -> bool:
        """Whether the class around ``scope``, one of its bases or one that inherits from it defines ``method``."""
        owner = self._around(path, scope)
        if owner is None:
            return False
        above = self._reached(owner, lambda one: self._above.get(one, ()))
        below = self._reached(owner, lambda one: self._below.get(one, ()))
        return any(method in self.methods.get(one, ()) for one in above | below)

    def lacks(self, name: str, path: str, method: str) -> bool:
        """Whether ``name`` means classes of the tree without a base outside of it, of which none has ``method``."""
        meant = [one for one in self.classes.get(name, ()) if self.programs.may_share(path, one[0])]
        family = {above for one in meant for above in self._reached(one, lambda one: self._above.get(one, ()))}
        outer = {base for one in family for base in self.bases[one]} - self.classes.keys() - {"object"}
        return bool(family) and not outer and not any(method in self.methods.get(one, ()) for one in family)

    def _around(self, path: str, scope: str) -> Owner | None:
        return next(((path, one) for one in scopes(scope) if (path, one) in self.bases), None)

    def _runs(self, owner: Owner, method: str) -> bool:
        """Whether instances of ``owner`` may run the ``method`` of its base."""
        return method not in self.methods.get(owner, ()) or method in self.supers.get(owner, ())

    def _reached(self, owner: Owner, step: Callable[[Owner], Iterable[Owner]]) -> set[Owner]:
        found: set[Owner] = set()
        pending = {owner}
        while pending:
            found |= pending
            pending = {other for one in pending for other in step(one)} - found
        return found

    @cached_property
    def _above(self) -> dict[Owner, frozenset[Owner]]:
        return {
            owner: frozenset(
                other
                for name in names
                for other in self.classes.get(name, ())
                if self.programs.may_share(owner[0], other[0])
            )
            for owner, names in self.bases.items()
        }

    @cached_property
    def _below(self) -> dict[Owner, frozenset[Owner]]:
        found: dict[Owner, set[Owner]] = defaultdict(set)
        for owner, above in self._above.items():
            for other in above:
                found[other].add(owner)
        return {owner: frozenset(others) for owner, others in found.items()}
