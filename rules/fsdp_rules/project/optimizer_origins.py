"""Whether every optimizer of a tree is known to be built from a model that is followed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fsdp_rules.project.building_order import BuildingOrder
from fsdp_rules.project.classes import Owners
from fsdp_rules.project.entered import Entered, Site
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.optimizers import Optimizer
from fsdp_rules.project.places import module_name, scopes


class Follows(Protocol):
    """What a project says of a name in a scope of a file."""

    def holds(self, path: str, scope: str, text: str) -> Certainty:
        """How sure it is that the name holds a wrapped model."""

    def is_wrapped_elsewhere(self, path: str, scope: str, text: str) -> bool:
        """Whether what the name holds is given to some wrap."""

    def touches(self, path: str) -> bool:
        """Whether some name in the file may hold a wrapped model."""

    def resolve(self, dotted: str) -> str:
        """The dotted name with re-exports followed."""

    @property
    def entered(self) -> Entered:
        """What ran before each function."""

    @property
    def takes(self) -> Mapping[Site, tuple[str, ...]]:
        """The parameters of each function."""

    @property
    def owners(self) -> Owners:
        """The classes."""


@dataclass(frozen=True)
class Optimizers:
    """The optimizers of all files, each with its path, and the dotted names of all functions and classes.

    ``ddp`` are the paths of the files that name DDP and nothing of FSDP: what no sharded model reaches there is DDP's.
    """

    found: tuple[tuple[str, Optimizer], ...] = ()
    functions: frozenset[str] = frozenset()
    ddp: frozenset[str] = frozenset()
    _order: list[BuildingOrder] = field(default_factory=list)

    @classmethod
    def build(cls, files: Iterable[FileFacts]) -> Optimizers:
        """Join those of all files."""
        files = list(files)
        return cls(
            tuple((file.path, entry) for file in files for entry in file.optimizers),
            frozenset(f"{file.module}.{name}" for file in files for name in (*file.functions, *file.classes)),
            frozenset(file.path for file in files if "ddp" in file.flags and not file.source),
        )

    def may_precede(self, project: Follows, path: str, scope: str, lines: tuple[int, int]) -> bool:
        """Whether an optimizer of unknown origin may be built before ``lines``, the first and last, of ``scope`` run.

        Also where optimizers step and none is built in sight.
        """
        found = self._relevant(project)
        if found and all(entry.used for _, entry in found):
            return True
        if not self._order:
            order = BuildingOrder.build(self.unseen(project), project.entered, project.takes, project.owners.bases)
            self._order.append(order)
        return self._order[0].may_precede(path, scope, lines)

    def unseen(self, project: Follows) -> list[tuple[str, Optimizer]]:
        """The optimizers that are not known to be built from a model that is followed, each with its path."""
        built = [(path, entry) for path, entry in self._relevant(project) if not entry.used]
        return [(path, entry) for path, entry in built if not self._is_followed(path, entry, project)]

    def _relevant(self, project: Follows) -> list[tuple[str, Optimizer]]:
        return [(path, entry) for path, entry in self.found if path not in self.ddp or project.touches(path)]

    def _is_followed(self, path: str, optimizer: Optimizer, project: Follows) -> bool:
        for model in optimizer.models:
            held = project.holds(path, optimizer.scope, model) is not Certainty.NO
            early = project.is_wrapped_elsewhere(path, optimizer.scope, model)
            # A method of a subclass may run before the one of its base that wraps, or the other way round.
            inherits = model.startswith("self.") and len(project.owners.places(path, optimizer.scope, model)) > 1
            # One whose class is known is looked at by FSDP117, be it built before or after.
            if (held and not early and not inherits) or (early and not optimizer.callee):
                return True
        return bool(optimizer.callee) and self._defines(path, optimizer, project)

    def _defines(self, path: str, optimizer: Optimizer, project: Follows) -> bool:
        """Whether a function of the tree gives ``optimizer`` and builds one itself, which is looked at there."""
        module, name = module_name(path), project.resolve(optimizer.callee)
        own = optimizer.callee.removeprefix("self.").removeprefix("cls.")
        around = (module, *(f"{module}.{scope}" for scope in scopes(optimizer.scope) if scope))
        meant = {f"{place}.{own}" for place in around} & self.functions
        meant |= {full for full in self.functions if full == name or full.endswith(f".{name}")}
        builders = {f"{module_name(where)}.{entry.scope}" for where, entry in self.found if not entry.used}
        return any(builder == full or builder.startswith(f"{full}.") for full in meant for builder in builders)
