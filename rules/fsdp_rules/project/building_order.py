"""Whether an optimizer of unknown origin may be built before a model is sharded, by the order of calls in a tree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fsdp_rules.project.entered import Entered, Site, called_as
from fsdp_rules.project.optimizers import Optimizer
from fsdp_rules.project.steps import Step

#: What a method calls its object and its class.
OWN = frozenset({"cls", "self"})
#: Functions that programs begin with, by what people call them.
ENTRY = re.compile(r"(^|_)(cli|finetune|fit|launch|main|pretrain|run|train|trainer|training|worker)(_|$)")
#: Parameters that are settings: any other may come with an optimizer that was built by then.
SETTING = re.compile(
    r"arg|cfg|conf|rank|world|port|hp|opts$|options|path|dir|file|seed|device|flag|setting", re.IGNORECASE
)


@dataclass(frozen=True)
class BuildingOrder:
    """``unseen`` are the ends of the calls that give optimizers of unknown origin, by the function they are in.

    ``parameters`` are those of every function, ``bases`` the last names of the bases of every class. What a function
    without callers is given is as old as may be, except where a program begins with it.
    """

    entered: Entered = field(default_factory=Entered)
    unseen: Mapping[Site, frozenset[tuple[int, int]]] = field(default_factory=dict)
    parameters: Mapping[Site, tuple[str, ...]] = field(default_factory=dict)
    bases: Mapping[Site, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        unseen: Iterable[tuple[str, Optimizer]],
        entered: Entered,
        parameters: Mapping[Site, tuple[str, ...]],
        bases: Mapping[Site, tuple[str, ...]],
    ) -> BuildingOrder:
        """Of the ``unseen`` optimizers, each with its path."""
        ends: dict[Site, frozenset[tuple[int, int]]] = defaultdict(frozenset)
        for path, entry in unseen:
            ends[path, entry.scope] |= {entry.end}
        return cls(entered, ends, parameters, bases)

    def may_precede(self, path: str, scope: str, lines: tuple[int, int]) -> bool:
        """Whether one may be built before ``lines``, the first and the last, of the function ``scope`` run."""
        if not self.unseen:
            return False
        if self._has_lambdas or self._runs_unseen:
            return True
        steps = self.entered.steps.get((path, scope), ())
        place = next((step for step in reversed(steps) if lines[0] <= step.end[0] <= lines[1]), None)
        if place is None:
            return True
        pending = [((path, scope), steps.index(place))]
        seen: set[tuple[Site, int]] = set()
        while pending:
            site, position = pending.pop()
            if (site, position) in seen:
                continue
            seen.add((site, position))
            callers = self._callers_of(site)
            if callers is None or any(self._builds(site, step) for step in self._before(site, position)):
                return True
            pending += callers
        frames = {site for site, _ in seen}
        return any(site not in frames and (not site[1] or site in self.bases) for site in self.unseen)

    @cached_property
    def _has_lambdas(self) -> bool:
        """Whether some call is none of its function's steps: it is in a lambda, which may run at any time."""
        steps = self.entered.steps
        return any(ends - {step.end for step in steps.get(site, ())} for site, ends in self.unseen.items())

    @cached_property
    def _runs_unseen(self) -> bool:
        """Whether some function that builds one may run where no call of it is seen."""
        return any(self._is_reached_unseen(site) for site in self._building)

    def _is_reached_unseen(self, site: Site) -> bool:
        name, is_method = site[1].rpartition(".")[2], "." in site[1]
        if not is_method and ENTRY.search(name):
            return False
        if name.startswith("__") and name != "__init__":
            return True
        uncalled = is_method and next(self._callers(site), None) is None
        return called_as(site[1]) in self.entered.values or uncalled

    def _before(self, site: Site, position: int) -> Iterator[Step]:
        """The steps that may run before the one at ``position``, those behind it in a loop around both among them."""
        steps = self.entered.steps[site]
        place = steps[position]
        around = {(line, column): arm for line, column, arm in place.arms}
        for index, step in enumerate(steps):
            again = any(first <= step.end[0] <= last for first, last in place.loops)
            apart = any(around.get((line, column), arm) != arm for line, column, arm in step.arms)
            if index != position and (again or (index < position and not apart)):
                yield step

    def _builds(self, site: Site, step: Step) -> bool:
        if step.end in self.unseen.get(site, frozenset()):
            return True
        receiver, _, name = step.callee.rpartition(".")
        if name == "__init__":
            above = [called_as(one[1]) for one in self._building if one[1].endswith(".__init__")]
            return any(called_as(site[1]) in self._below(one) for one in above)
        if name in self._building_names or (
            receiver in OWN and any(called_as(one[1]) == name for one in self._building)
        ):
            return True
        return any(called in self._building for called in self.entered.called(*site, step.callee))

    @cached_property
    def _building(self) -> frozenset[Site]:
        """The functions that build one, or call what does."""
        found: set[Site] = set()
        pending = list(self.unseen)
        while pending:
            site = pending.pop()
            if site in found or not site[1]:
                continue
            found.add(site)
            pending += [caller for caller, _ in self._callers(site)]
            # What is defined inside of a function runs, if at all, while that is on.
            outer = (site[0], site[1].rpartition(".")[0])
            pending += [outer] if outer in self.parameters else []
        return frozenset(found)

    @cached_property
    def _building_names(self) -> frozenset[str]:
        """The names of classes whose objects build one when they are made, by a class that they extend."""
        made = [
            scope.rpartition(".")[0].rpartition(".")[2] for _, scope in self._building if scope.endswith("__init__")
        ]
        return frozenset(name for one in made for name in self._below(one))

    def _callers(self, site: Site) -> Iterator[tuple[Site, int]]:
        """The calls that may run the function at ``site``."""
        name, owner = called_as(site[1]), site[1].rpartition(".")[0].rpartition(".")[2]
        for caller, position in self.entered.callers.get(name, ()):
            callee = self.entered.steps[caller][position].callee
            if self._is_own(caller, callee.rpartition(".")[0], site) or site in self.entered.called(*caller, callee):
                yield caller, position
        if site[1].endswith(".__init__"):
            for below in self._below(owner):
                yield from self.entered.callers.get(below, ())
            for caller, position in self.entered.callers.get("__init__", ()):
                if caller[1].rpartition(".")[0].rpartition(".")[2] in self._below(owner):
                    yield caller, position

    def _is_own(self, caller: Site, receiver: str, site: Site) -> bool:
        """Whether a call on the object of ``caller`` may run the method at ``site``, of a class of the same family."""
        if receiver not in OWN:
            return False
        first, second = caller[1].rpartition(".")[0], site[1].rpartition(".")[0]
        if (caller[0], first) == (site[0], second):
            return True
        names = [one.rpartition(".")[2] for one in (first, second)]
        families = [{name, *self._below(name)} for name in names]
        return names[0] != names[1] and not families[0].isdisjoint(families[1])

    def _callers_of(self, site: Site) -> list[tuple[Site, int]] | None:
        """The calls of the function at ``site``; None where what calls it is not known."""
        scope = site[1]
        if not scope:
            return []
        name = scope.rpartition(".")[2]
        found = list(self._callers(site))
        is_method = "." in scope
        given = not all(SETTING.search(parameter) for parameter in self.parameters.get(site, ()))
        if not is_method and ENTRY.search(name) and not given:
            return found
        names = self._below(called_as(scope)) | {called_as(scope)}
        if not found or not names.isdisjoint(self.entered.values):
            return None
        return found if name == "__init__" or not name.startswith("__") else None

    def _below(self, name: str) -> frozenset[str]:
        """The names of the classes that extend the class ``name``, directly or not."""
        found: set[str] = set()
        pending = [name]
        while pending:
            for below in self._extended.get(pending.pop(), ()):
                if below not in found:
                    found.add(below)
                    pending.append(below)
        return frozenset(found)

    @cached_property
    def _extended(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for (_, qualified), names in self.bases.items():
            for name in names:
                found[name].append(qualified.rpartition(".")[2])
        return found
