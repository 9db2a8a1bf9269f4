"""Whether every optimizer of a tree is known to be built from a model that is followed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True)
class Optimizers:
    """The optimizers of all files, each with its path, and the dotted names of all functions and classes.

    ``ddp`` are the paths of the files that name DDP and nothing of FSDP: what no sharded model reaches there is DDP's.
    """

    found: tuple[tuple[str, Optimizer], ...] = ()
    functions: frozenset[str] = frozenset()
    ddp: frozenset[str] = frozenset()

    @classmethod
    def build(cls, files: Iterable[FileFacts]) -> Optimizers:
        """Join those of all files."""
        files = list(files)
        return cls(
            tuple((file.path, entry) for file in files for entry in file.optimizers),
            frozenset(f"{file.module}.{name}" for file in files for name in (*file.functions, *file.classes)),
            frozenset(file.path for file in files if "ddp" in file.flags and not file.source),
        )

    def has_unseen(self, project: Follows) -> bool:
        """Whether some optimizer is not known to be built from a model that is followed, or none is built at all."""
        found = [(path, entry) for path, entry in self.found if path not in self.ddp or project.touches(path)]
        built = [(path, entry) for path, entry in found if not entry.used]
        return not all(self._is_followed(path, entry, project) for path, entry in built) if built else bool(found)

    def _is_followed(self, path: str, optimizer: Optimizer, project: Follows) -> bool:
        for model in optimizer.models:
            held = project.holds(path, optimizer.scope, model) is not Certainty.NO
            early = project.is_wrapped_elsewhere(path, optimizer.scope, model)
            # One whose class is known is looked at by FSDP117, be it built before or after.
            if (held and not early) or (early and not optimizer.callee):
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
