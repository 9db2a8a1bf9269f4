"""A whole recording: what all ranks of one run wrote, by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from fsdp_migrate.verify.recording.value import Copies, Value

#: So many ranks are named.
_MANY = 8


class BadRecording(Exception):
    """What, where, and what to do, in one sentence or two."""


class OtherRanks(BadRecording):
    """Only some ranks are here; ``is_node`` where they are all of one machine, and the others ran on other ones."""

    def __init__(self, directory: Path, found: Sequence[int], world: int, is_node: bool) -> None:
        missing = [rank for rank in range(world) if rank not in found]
        more = f" and {len(missing) - _MANY} more" if len(missing) > _MANY else ""
        named = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:_MANY]))}{more}"
        verb = "are" if len(missing) > 1 else "is"
        super().__init__(
            f"{directory}: {len(found)} of {world} ranks were recorded, {named} {verb} missing; "
            "copy the files or the folders of all nodes into it"
        )
        self.found, self.world, self.is_node = len(found), world, is_node


#: What an optimizer keeps of one parameter, by name.
State: TypeAlias = Mapping[str, Copies | float | str | None]


@dataclass(frozen=True)
class Parameter:
    """``key`` is the number of the model and the first of ``names``; ``numel`` counts all elements."""

    key: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    trained: bool
    #: The copy to which each rank's part belongs, and how many elements that part has.
    replicas: Mapping[int, int]
    parts: Mapping[int, int]

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total


@dataclass(frozen=True)
class Model:
    """One model of the program; ``units`` as rank 0 has them."""

    class_name: str
    parameters: tuple[Parameter, ...]
    units: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Call:
    """An input, output or gradient of one module; ``tensor`` is None where it could not be digested."""

    module: str
    what: str
    value: Value | None


@dataclass(frozen=True)
class Clip:
    """One call that clips gradients; ``value`` is what ``.item()`` gives on this rank."""

    limit: float | None
    value: Value | None
    partial: bool


@dataclass(frozen=True)
class Forward:
    """The tensors that one forward of the model ``root`` got; ``grad``: with gradients enabled, as in training."""

    root: int
    grad: bool
    tensors: tuple[Value | None, ...]


@dataclass(frozen=True)
class OfRank:
    """What belongs to one rank in one step, with what led to it since the step before."""

    inputs: tuple[Forward, ...]
    losses: tuple[Value | None, ...]
    clips: tuple[Clip, ...]
    calls: tuple[Call, ...]
    buffers: Mapping[str, Value | None]
    seconds: float
    peak: Mapping[str, int]
    collectives: Mapping[str, int]
    #: A digest of where torch's generators were as the step began.
    random: str = ""


@dataclass(frozen=True)
class Step:
    """One step of the optimizer ``optimizer``; both count from 0."""

    optimizer: int
    step: int
    ranks: tuple[OfRank, ...]
    unclipped: Mapping[str, Copies]
    grads: Mapping[str, Copies]
    weights: Mapping[str, Copies]
    state: Mapping[str, State]
    settings: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class OptimizerStart:
    """An optimizer before its first step. ``weights`` are those of all models, trained or not.

    ``state``: what it was given by a load, as in :class:`Step`; ``empty``: ranks that have none where others have some.
    ``between`` and ``within``: names of states that are one tensor for several parameters, or in one parameter.
    """

    name: str
    groups: tuple[tuple[str, ...], ...]
    missing: tuple[str, ...]
    weights: Mapping[str, Copies]
    state: Mapping[str, State] = field(default_factory=dict)
    empty: tuple[int, ...] = ()
    between: frozenset[str] = frozenset()
    within: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Recording:
    """``environments`` by rank; ``files``: code of the program; ``earlier``: read, and written by an earlier run."""

    environments: tuple[Mapping[str, Any], ...]
    models: tuple[Model, ...]
    optimizers: tuple[OptimizerStart, ...]
    first_buffers: tuple[Mapping[str, Value | None], ...]
    steps: tuple[Step, ...]
    files: tuple[str, ...]
    earlier: tuple[str, ...]
    finished: bool
    asked: int
    deep: int
    failures: tuple[str, ...] = field(default=())
    #: What the CPU answered for a GPU, as a note.
    answers: tuple[str, ...] = ()
    #: The steps before, where this is the rest of a run.
    until: tuple[Step, ...] = ()

    @property
    def world(self) -> int:
        return len(self.environments)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {parameter.key: parameter for model in self.models for parameter in model.parameters}

    def losses(self, optimizer: int) -> list[tuple[int, float]]:
        """Of each step of one optimizer, what was handed to backward: its sum, as a mean over the ranks."""
        found = []
        for step in self.steps:
            values = [sum(v.total for v in rank.losses if v is not None) for rank in step.ranks]
            if step.optimizer == optimizer and any(rank.losses for rank in step.ranks):
                found.append((step.step, sum(values) / len(values)))
        return found
