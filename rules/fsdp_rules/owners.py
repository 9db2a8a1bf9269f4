"""Whose attribute ``self.x`` is: that of a class, of those it inherits from and of those that inherit from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fsdp_rules.facts import FileFacts, place_key

#: A class: the file it stands in (as in a place), and its qualified name.
Owner = tuple[str, str]


@dataclass(frozen=True)
class Owners:
    """The classes of a project, by last name, with their bases, and every place that something is assigned to."""

    classes: Mapping[str, tuple[Owner, ...]] = field(default_factory=dict)
    bases: Mapping[Owner, tuple[str, ...]] = field(default_factory=dict)
    assigned: frozenset[str] = field(default=frozenset())

    @classmethod
    def build(cls, files: Iterable[FileFacts]) -> Owners:
        """Join the classes of all files."""
        classes: dict[str, list[Owner]] = defaultdict(list)
        bases: dict[Owner, tuple[str, ...]] = {}
        assigned: set[str] = set()
        for file in files:
            assigned.update(flow.target for flow in file.flows if flow.target.startswith("var:"))
            for qualified, names in file.classes.items():
                owner = (place_key(file.path), qualified)
                classes[qualified.rpartition(".")[2]].append(owner)
                bases[owner] = names
        return cls({name: tuple(owners) for name, owners in classes.items()}, bases, frozenset(assigned))

    def places(self, path: str, scope: str, text: str) -> tuple[str, ...]:
        """Every place that ``self.x`` (``text``) in ``scope`` may mean, in the class around it and in its family."""
        owner = (place_key(path), scope)
        while owner not in self.bases:
            if not owner[1]:
                return ()
            owner = (owner[0], owner[1].rpartition(".")[0])
        family = self._reached(owner, self._above) | self._reached(owner, self._below)
        return tuple(f"var:{key}:{qualified}:{text}" for key, qualified in sorted(family))

    def _reached(self, owner: Owner, step: Mapping[Owner, frozenset[Owner]]) -> set[Owner]:
        found: set[Owner] = set()
        pending = {owner}
        while pending:
            found |= pending
            pending = {other for one in pending for other in step.get(one, ())} - found
        return found

    @cached_property
    def _above(self) -> dict[Owner, frozenset[Owner]]:
        return {
            owner: frozenset(other for name in names for other in self.classes.get(name, ()))
            for owner, names in self.bases.items()
        }

    @cached_property
    def _below(self) -> dict[Owner, frozenset[Owner]]:
        found: dict[Owner, set[Owner]] = defaultdict(set)
        for owner, above in self._above.items():
            for other in above:
                found[other].add(owner)
        return {owner: frozenset(others) for owner, others in found.items()}
