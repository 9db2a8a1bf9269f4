"""What a file says to others by bare names and words alone: it counts in the programs that run it, and in no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsdp_rules.project.askers import askers_of
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.parts import ModuleClass, Parts

#: What a file does to states: takes or loads one, and sets what kind the next one is of.
_STATES = frozenset({"takes_state", "sticky_state"})


@dataclass(frozen=True)
class Told:
    """The part of a file's facts that other files find by a bare name, or by a word that is anywhere in the tree.

    A file that is not indexed has its ``flags`` alone.
    """

    path: str
    flags: frozenset[str]
    module: str = ""
    functions: tuple[str, ...] = ()
    askers: Mapping[str, bool] = field(default_factory=dict)
    shards: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    modules: Mapping[str, ModuleClass] = field(default_factory=dict)
    returned: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, file: FileFacts) -> Told:
        """That part of the facts of one file."""
        return cls(
            file.path,
            file.flags,
            file.module,
            tuple(file.functions),
            file.askers,
            file.shards,
            file.steps.values,
            file.modules,
            file.returned,
        )


def words(told: Iterable[Told]) -> frozenset[str]:
    """The flags that one of the files raises."""
    return frozenset().union(*(one.flags for one in told))


def called_values(told: Iterable[Told]) -> frozenset[str]:
    """The names of functions that one of the files calls as values."""
    return frozenset().union(*(one.values for one in told))


def by_name(told: Sequence[Told]) -> dict[str, Any]:
    """The fields of a project that join what these files tell, by their names there."""
    indexed = [one for one in told if one.module or one.functions]
    return {
        "methods": frozenset(name.rpartition(".")[2] for one in told for name in one.functions if "." in name),
        "askers": askers_of((one.module, one.functions, one.askers) for one in indexed),
        "fsdp2": frozenset(f"{one.module}.{name}" for one in told for name in one.shards),
        "taking": frozenset(one.path for one in indexed if one.flags & _STATES == {"takes_state"}),
        "parts": Parts.build([one.modules for one in told], [one.returned for one in told]),
    }
