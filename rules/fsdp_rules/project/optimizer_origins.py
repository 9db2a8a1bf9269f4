"""Whether every optimizer of a tree is known to be built from a model that is followed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from fsdp_rules.project.classes import Owners
from fsdp_rules.project.entered import Site
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.optimizers import HOOK, Optimizer
from fsdp_rules.project.places import module_name, scopes
from fsdp_rules.project.programs import Programs
from fsdp_rules.project.value_facts import Built, Fact, Position, ValueFacts


class Follows(Protocol):
    """What a project says of a name in a scope of a file."""

    def named(self, path: str, scope: str, text: str) -> Fact:
        """What the name may be."""

    def touches(self, path: str) -> bool:
        """Whether some name in the file may hold a wrapped model."""

    def resolve(self, dotted: str) -> str:
        """The dotted name with re-exports followed."""

    @property
    def values(self) -> ValueFacts:
        """What expressions may be, and the order of what builds optimizers and wraps."""

    @property
    def owners(self) -> Owners:
        """The classes."""


@dataclass(frozen=True)
class Optimizers:
    """The optimizers of all files, each with its path, and the dotted names of all functions and classes.

    ``ddp`` are the paths of the files that name DDP and nothing of FSDP: what no sharded model reaches there is DDP's.
    ``programs`` says which files may run together: the optimizers of other programs are none of a model's.
    ``calls_hook``: some file calls the method that Lightning's trainer calls, as programs without Lightning do.
    """

    found: tuple[tuple[str, Optimizer], ...] = ()
    functions: frozenset[str] = frozenset()
    ddp: frozenset[str] = frozenset()
    calls_hook: bool = False
    programs: Programs = field(default_factory=Programs)

    @classmethod
    def build(cls, files: Iterable[FileFacts], programs: Programs) -> Optimizers:
        """Join those of all files."""
        files = list(files)
        return cls(
            tuple((file.path, entry) for file in files for entry in file.optimizers),
            frozenset(f"{file.module}.{name}" for file in files for name in (*file.functions, *file.classes)),
            frozenset(file.path for file in files if "ddp" in file.flags and not file.source),
            any(_calls_hook(entry) for file in files for entry in file.optimizers),
            programs,
        )

    @property
    def built(self) -> frozenset[Built]:
        """The calls that give one."""
        return frozenset(Built(path, *entry.end) for path, entry in self.found if not entry.used)

    def may_precede(self, project: Follows, site: Site, wrap: Position) -> bool:
        """Whether an optimizer of unknown origin may be built before the function at ``site`` wraps at ``wrap``.

        Also where optimizers step and none is built in sight.
        """
        found = self._relevant(project, site[0])
        if found and all(entry.used for _, entry in found):
            return True
        before = project.values.built_before.get(site[0], {}).get(wrap)
        unseen = self.unseen(project, site)
        return any(before is None or Built(path, *entry.end) in before for path, entry in unseen)

    def unseen(self, project: Follows, site: Site) -> list[tuple[str, Optimizer]]:
        """Those that nothing says to be built of what the function at ``site`` wraps, each with its path."""
        built = [(path, entry) for path, entry in self._relevant(project, site[0]) if not entry.used]
        # What a function wraps is no module of Lightning's that has such a method in another file.
        if not self.calls_hook and "." not in site[1]:
            built = [one for one in built if one[0] == site[0] or not one[1].scope.endswith(f".{HOOK}")]
        return [(path, entry) for path, entry in built if not self._is_followed(path, entry, project, site)]

    def _relevant(self, project: Follows, where: str) -> list[tuple[str, Optimizer]]:
        """Those that may be in the program of the file ``where``."""
        found = [(path, entry) for path, entry in self.found if not _calls_hook(entry)]
        found = [(path, entry) for path, entry in found if self.programs.may_share(where, path)]
        return [(path, entry) for path, entry in found if path not in self.ddp or project.touches(path)]

    def _is_followed(self, path: str, optimizer: Optimizer, project: Follows, site: Site) -> bool:
        owner, name = _owner(optimizer.scope), optimizer.scope.rpartition(".")[2]
        in_class = name == "__init__" and owner == _owner(site[1])
        is_near = path == site[0] and (optimizer.scope == site[1] or in_class)
        for model in optimizer.models:
            fact = project.named(path, optimizer.scope, model)
            sure = fact.model
            # What another function puts into an object may come after its own methods have run.
            held = sure is Certainty.YES or (sure is Certainty.MAYBE and not model.startswith("self."))
            # A property that wraps gives what is not wrapped only where nothing is.
            is_property = model.startswith("self.") and project.owners.may_have(path, optimizer.scope, model[5:])
            early = fact.given is not Certainty.NO and not is_property
            # A method of a subclass may run before the one of its base that wraps, or the other way round.
            inherits = model.startswith("self.") and len(project.owners.family(path, optimizer.scope)) > 1
            # One whose class is known is looked at by FSDP117 in its own function or class, before or after the wrap.
            known = early and not optimizer.callee and (is_near or not _is_inner(optimizer.scope, model))
            if (held and not early and not inherits) or known:
                return True
        # What an object of the tree without a step builds inside is found there.
        last = optimizer.callee.rpartition(".")[2]
        return bool(last) and (project.owners.lacks(last, path, "step") or self._defines(path, optimizer, project))

    def _defines(self, path: str, optimizer: Optimizer, project: Follows) -> bool:
        """Whether a function of the tree gives ``optimizer`` and builds one itself, which is looked at there."""
        module, name = module_name(path), project.resolve(optimizer.callee)
        own = optimizer.callee.removeprefix("self.").removeprefix("cls.")
        around = (module, *(f"{module}.{scope}" for scope in scopes(optimizer.scope) if scope))
        meant = {f"{place}.{own}" for place in around} & self.functions
        meant |= {full for full in self.functions if full == name or full.endswith(f".{name}")}
        builders = {f"{module_name(where)}.{entry.scope}" for where, entry in self.found if not entry.used}
        return any(builder == full or builder.startswith(f"{full}.") for full in meant for builder in builders)


def _calls_hook(optimizer: Optimizer) -> bool:
    return optimizer.used and optimizer.callee == HOOK


def _owner(scope: str) -> str:
    """What the function ``scope`` stands in, a class or another function."""
    return scope.rpartition(".")[0]


def _is_inner(scope: str, model: str) -> bool:
    """Whether ``model`` belongs to an object, or to the function around ``scope``, which may wrap it elsewhere."""
    return model.startswith("self.") or bool(_owner(scope))
