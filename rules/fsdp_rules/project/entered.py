"""Which pass of a sharded model may have run last where a function of the tree begins, and where it ends."""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.programs import Programs
from fsdp_rules.project.steps import BY_NAME, Arm, Step
from fsdp_rules.project.surely_run import SurelyRun
from fsdp_rules.project.value_facts import NOTHING as NO_FACT
from fsdp_rules.project.value_facts import ValueFacts

#: Functions that look at the parameters of a model that they are given, by what people call them. What switches the
#: synchronisation of gradients off, as `no_backward_sync(model)`, looks at none.
LOOKS = re.compile(
    r"ema|averag|optim|teacher|update|hash|checksum|freeze|param|norm|copy|count|(?<!no_)(?<!no_backward_)sync",
    re.IGNORECASE,
)
#: Functions and methods that run a model without a backward, by what people call them.
EVALUATES = re.compile(r"(^|_)(eval\w*|valid\w*|test|tests|infer\w*|predict\w*|sample|generate|rollout|forward)(_|$)")
GROUPS = re.compile(r"group|param|trainable|weights", re.IGNORECASE)
#: Methods of every module, which are not those of the tree that have the same names.
OF_MODULES = frozenset(
    {
        *("apply", "buffers", "children", "cpu", "cuda", "eval", "half", "load_state_dict", "modules"),
        *("named_buffers", "named_children", "named_modules", "named_parameters", "parameters"),
        *("requires_grad_", "reshard", "state_dict", "to", "train", "zero_grad"),
    }
)
#: A function of torch that is only called like a pass.
REGISTERS = "register_fsdp_forward_method"
#: A function of the tree: the path of its file and its qualified name.
Site = tuple[str, str]


class Pass(enum.Enum):
    """What may have happened last to the parameters: ``UNKNOWN`` is what the caller of the function did."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RESHARD = "reshard"
    UNKNOWN = "unknown"


NOTHING = frozenset({Pass.UNKNOWN})


def is_backward(name: str) -> bool:
    """Whether what is called ``name`` runs a backward: timm's scaler, which is called with the loss, does too."""
    return name == "backward" or name.endswith(("_backward", "scaler"))


@dataclass(frozen=True)
class Entered:
    """``facts`` are those of all expressions, ``steps`` the calls of each function.

    ``values`` are the names of functions that are called as values.
    ``programs`` says which files may run together.
    """

    facts: ValueFacts = field(default_factory=ValueFacts)
    steps: dict[Site, tuple[Step, ...]] = field(default_factory=dict)
    functions: dict[str, tuple[Site, ...]] = field(default_factory=dict)
    values: frozenset[str] = field(default=frozenset())
    programs: Programs = field(default_factory=Programs)
    _entries: dict[Site, bool] = field(default_factory=dict)
    _exits: dict[Site, frozenset[Pass]] = field(default_factory=dict)
    _starts: dict[Site, frozenset[Pass]] = field(default_factory=dict)
    _followers: dict[Site, bool] = field(default_factory=dict)

    def without(self, apart: frozenset[str], values: frozenset[str]) -> Entered:
        """The same of all files but those ``apart``; ``values`` are the names that the others call as values."""
        steps = {site: found for site, found in self.steps.items() if site[0] not in apart}
        return Entered(self.facts, steps, self.functions, values, self.programs)

    def after_forward(self, path: str, scope: str) -> bool:
        """Whether some caller runs a forward of a sharded model, and no backward, before it calls ``scope``."""
        site = (path, scope)
        if site not in self._entries:
            self._entries[site] = False
            self._entries[site] = self._is_entered(site)
        return self._entries[site]

    def leaves(self, path: str, scope: str, callee: str) -> frozenset[Pass]:
        """What may be the last pass after a call of ``callee`` in ``scope``; empty where no function is known."""
        found: set[Pass] = set()
        for site in self.called(path, scope, callee):
            found |= self._leaves(site)
        return frozenset(found)

    def begins(self, path: str, scope: str, callee: str) -> frozenset[Pass]:
        """What may be the first pass in a call of ``callee`` in ``scope``; empty where no function is known."""
        found: set[Pass] = set()
        for site in self.called(path, scope, callee):
            found |= self._begins(site)
        return frozenset(found)

    def before_backward(self, path: str, scope: str) -> bool:
        """Whether some caller of ``scope`` runs a backward after its call, and no other pass before that."""
        site = (path, scope)
        if site not in self._followers:
            self._followers[site] = False
            self._followers[site] = any(self._is_followed(caller, at, site) for caller, at in self._calls_of(site))
        return self._followers[site]

    def before_call(self, path: str, scope: str, names: frozenset[str], after: tuple[int, int]) -> bool:
        """Whether one of ``names`` is called below ``after`` in ``scope``, or after a call of it, before a backward."""
        own = [step for step in self.steps.get((path, scope), ()) if step.end > after]
        ways = [((path, scope), own)]
        ways += [(site, [*self.steps[site][at + 1 :]]) for site, at in self._calls_of((path, scope))]
        for site, steps in ways:
            for step in steps:
                if self._first(site, step) == {Pass.BACKWARD}:
                    break
                if step.callee.rpartition(".")[2] in names:
                    return True
        return False

    def is_given_model(self, name: str) -> Certainty:
        """How sure it is that a call of ``name`` gets a sharded model, or its parameters; NO where others get none."""
        calls = [(site, self.steps[site][position]) for site, position in self.callers.get(name, ())]
        if any(self._may_run(*site, text) for site, step in calls for text in step.given):
            return Certainty.YES
        # A list of groups may hold what no name of a model says.
        known = bool(calls) and all(step.given and not GROUPS.search(" ".join(step.given)) for _, step in calls)
        return Certainty.NO if known else Certainty.MAYBE

    def calls_on_model(self, path: str, methods: frozenset[str]) -> bool:
        """Whether the file at ``path`` calls one of ``methods`` of what may be a sharded model."""
        return any(
            step.callee.rpartition(".")[2] in methods and self._may_run(*site, step.callee.rpartition(".")[0])
            for site, steps in self.steps.items()
            if site[0] == path
            for step in steps
        )

    def _is_entered(self, site: Site) -> bool:
        name = called_as(site[1])
        if not site[1]:
            return False
        callers = self._calls_of(site)
        if not callers:
            by_name = BY_NAME in self.values and repr(name) in self.values
            return (name in self.values or by_name) and self._evaluates
        for caller, position in callers:
            step = self.steps[caller][position]
            if LOOKS.search(step.callee) and any(self._may_run(*caller, text) for text in step.given):
                continue
            passes = self._before(caller, position)
            if Pass.FORWARD in passes or (Pass.UNKNOWN in passes and self.after_forward(*caller)):
                return True
        return False

    def _calls_of(self, site: Site) -> list[tuple[Site, int]]:
        """The calls that may run the function at ``site``, each as its function and its number there."""
        return [
            (caller, position)
            for caller, position in self.callers.get(called_as(site[1]), ())
            if site in self.called(*caller, self.steps[caller][position].callee)
        ]

    def _is_followed(self, caller: Site, position: int, site: Site) -> bool:
        place = self.steps[caller][position]
        around = {(line, column): arm for line, column, arm in place.arms}
        for step in self.steps[caller][position + 1 :]:
            if any(around.get((line, column), arm) != arm for line, column, arm in step.arms):
                continue
            if first := self._first(caller, step):
                return first == {Pass.BACKWARD}
        return caller != site and self.before_backward(*caller)

    def _first(self, site: Site, step: Step) -> frozenset[Pass]:
        """The first pass that ``step`` runs; empty where it runs none."""
        passes = self._passes(site, step) - NOTHING
        called = self.begins(*site, step.callee)
        return called or passes

    def _begins(self, site: Site) -> frozenset[Pass]:
        if site not in self._starts:
            self._starts[site] = frozenset()
            found = (self._first(site, step) for step in self.steps.get(site, ()))
            self._starts[site] = next((one for one in found if one), frozenset())
        return self._starts[site]

    def _before(self, site: Site, position: int) -> frozenset[Pass]:
        """Everything that may have been the last pass before a step, loops followed around once."""
        steps, place = self.steps[site], self.steps[site][position]
        found: set[Pass] = set()
        last = position
        for first_line, last_line in place.loops:
            inside = [index for index, step in enumerate(steps) if first_line <= step.end[0] <= last_line]
            if self._collect(site, [steps[index] for index in inside if index < last], place, found):
                return frozenset(found)
            self._collect(site, [steps[index] for index in inside if index > position], place, found)
            last = min([index for index in inside if index < last], default=last)
        if not self._collect(site, steps[:last], place, found):
            found.add(Pass.UNKNOWN)
        return frozenset(found)

    def _leaves(self, site: Site) -> frozenset[Pass]:
        if site not in self._exits:
            self._exits[site] = NOTHING
            found: set[Pass] = set()
            ran = self._collect(site, self.steps.get(site, ()), None, found)
            self._exits[site] = frozenset(found if ran else found | {Pass.UNKNOWN})
        return self._exits[site]

    def _collect(self, site: Site, steps: Sequence[Step], place: Step | None, found: set[Pass]) -> bool:
        """Add what may be the last pass of ``steps`` before ``place``; whether one of them surely ran."""
        around = {(line, column): arm for line, column, arm in place.arms} if place is not None else {}
        ran = SurelyRun[Arm](lambda arm: ((*arm[:2], "body"), (*arm[:2], "orelse")))
        for step in reversed(steps):
            if any(around.get((line, column), arm) != arm for line, column, arm in step.arms):
                continue
            own = tuple(arm for arm in step.arms if arm[:2] not in around)
            passes = NOTHING if ran.follows(own) else self._passes(site, step)
            found |= passes - NOTHING
            if passes and Pass.UNKNOWN not in passes and ran.add(own):
                return True
        return False

    def _passes(self, site: Site, step: Step) -> frozenset[Pass]:
        name = step.callee.rpartition(".")[2]
        if is_backward(name):
            return frozenset({Pass.BACKWARD})
        if name == "reshard":
            return frozenset({Pass.RESHARD})
        owner = step.callee.removesuffix(".forward")
        if owner and self._may_run(*site, owner):
            return frozenset({Pass.FORWARD})
        found = self.leaves(*site, step.callee)
        if not found and EVALUATES.search(name) and name not in OF_MODULES and name != REGISTERS:
            receiver = step.callee.rpartition(".")[0]
            if any(self._may_run(*site, text) for text in (*step.given, *([receiver] if receiver else []))):
                return frozenset({Pass.FORWARD})
        return found

    def _may_run(self, path: str, scope: str, text: str) -> bool:
        """Whether a call of the dotted name ``text``, or of what gets it, may run a sharded model."""
        fact = self.facts.named.get(path, {}).get((scope, text), NO_FACT)
        return fact.model is not Certainty.NO

    def called(self, path: str, scope: str, callee: str) -> list[Site]:
        """The functions of the tree that a call of ``callee`` in ``scope`` may run, those of the same class first."""
        receiver, _, name = callee.rpartition(".")
        found = [site for site in self.functions.get(name, ()) if self.programs.may_share(path, site[0])]
        if not receiver:
            seen = [site for site in found if self._is_visible(site, path, scope)]
            return [site for site in seen if site[0] == path] or seen
        if receiver in ("self", "cls"):
            owner = scope.rpartition(".")[0]
            own = [site for site in found if site[0] == path and site[1] == f"{owner}.{name}"]
            if own:
                return own
        if name in OF_MODULES and (receiver == "?" or self._may_run(path, scope, receiver)):
            return []
        return found

    def _is_visible(self, site: Site, path: str, scope: str) -> bool:
        """Whether a bare name in ``scope`` may mean the function or class at ``site``: methods have no bare name."""
        owner = site[1].removesuffix(".__init__").rpartition(".")[0]
        if not owner:
            return True
        is_around = site[0] == path and f"{scope}.".startswith(f"{owner}.")
        return is_around and (scope == owner or (path, owner) in self.functions.get(called_as(owner), ()))

    @cached_property
    def callers(self) -> dict[str, list[tuple[Site, int]]]:
        """The calls of every name, each as its function and its number there."""
        found: dict[str, list[tuple[Site, int]]] = defaultdict(list)
        for site, steps in self.steps.items():
            for position, step in enumerate(steps):
                found[step.callee.rpartition(".")[2]].append((site, position))
        return found

    @cached_property
    def _evaluates(self) -> bool:
        """Whether some function of the tree may end with a forward as its last pass."""
        return any(Pass.FORWARD in self._leaves(site) for site in self.steps)


def called_as(scope: str) -> str:
    """The name that a function is called by: a class's, for what initialises its objects."""
    owner, _, name = scope.rpartition(".")
    return owner.rpartition(".")[2] if name == "__init__" else name


def functions_by_name(files: Iterable[tuple[str, Iterable[str]]]) -> dict[str, tuple[Site, ...]]:
    """The functions of all files (path, qualified names), by what they are called by."""
    found: dict[str, list[Site]] = defaultdict(list)
    for path, names in files:
        for qualified in names:
            found[called_as(qualified)].append((path, qualified))
    return {name: tuple(sites) for name, sites in found.items()}
