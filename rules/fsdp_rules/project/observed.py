"""What a traced run showed of a tree: the strongest evidence that there is, for the lines that ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.value_facts import Position

MODEL = frozenset({"model"})
PART = frozenset({"model", "part"})
PARAMETER = frozenset({"parameter"})
PARAMETERS = frozenset({"parameters", "parameter"})
GRADIENT = frozenset({"gradient"})
#: What FSDP1's wrapper has in it: it is the model itself once that is sharded in place.
INNER_MODEL = frozenset({"inner"})
#: What surely is no model, and holds none.
_OTHERS = frozenset(
    {"module", "tensor", "other", "optimizer", "optimizer over sharded", "parameter", "gradient", "part"}
)


@dataclass(frozen=True)
class Seen:
    """What one expression was, by how often. ``is_whole``: every rank that ran its line looked.

    What was nothing, a list, or a module that has models in it says nothing of what the expression is elsewhere.
    """

    kinds: Mapping[str, int]
    is_whole: bool = True

    @property
    def looks(self) -> int:
        """How often it was looked at."""
        return sum(self.kinds.values())

    def held(self, kinds: frozenset[str]) -> Certainty | None:
        """Whether it always, sometimes or never was one of ``kinds``; None where too little was seen to say so."""
        found = sum(number for kind, number in self.kinds.items() if kind in kinds)
        if found == self.looks:
            return Certainty.YES
        if found:
            return Certainty.MAYBE
        return Certainty.NO if self.is_whole and _OTHERS.issuperset(self.kinds) else None


@dataclass(frozen=True)
class SeenWrap:
    """A call that wrapped models: whether one had BatchNorm, buffers of floating point, or was on meta.

    ``early`` are the places, as "path:line", of optimizers that held their parameters before. ``unused`` are trained
    parameters that some step of a model, of ``steps`` that were seen, did not use for all that was seen.
    """

    batch_norm: bool = False
    on_meta: bool = False
    buffers: bool = False
    early: tuple[str, ...] = ()
    steps: int = 0
    unused: tuple[str, ...] = ()
    written: tuple[str, ...] = ()

    def beside(self, other: SeenWrap) -> SeenWrap:
        """Both, for two models that one call wraps; one that no step was seen of says nothing about steps."""
        return SeenWrap(
            self.batch_norm or other.batch_norm,
            self.on_meta or other.on_meta,
            self.buffers or other.buffers,
            (*self.early, *other.early),
            min(self.steps, other.steps),
            tuple(dict.fromkeys((*self.unused, *other.unused))),
        )


@dataclass(frozen=True)
class FileSeen:
    """One file. ``lines`` counts how often each began, on all ranks; calls are known by their line and column.

    ``late`` are optimizers that were built over sharded parameters each time. ``states`` are the types of state that
    were in force where ``state_dict`` and ``load_state_dict`` of a model were read. ``denies``: what was never a model
    counts as none.
    """

    values: Mapping[Position, Seen]
    lines: Mapping[int, int]
    wraps: Mapping[tuple[int, int], SeenWrap] = field(default_factory=dict)
    late: frozenset[tuple[int, int]] = frozenset()
    states: Mapping[tuple[int, int], frozenset[str]] = field(default_factory=dict)
    denies: bool = True

    @property
    def affirming(self) -> FileSeen:
        """The same, where what was never a model may be one."""
        return replace(self, denies=False)


@dataclass(frozen=True)
class Observed:
    """All files of which the run's version is the one that is read, and the paths of those that have changed."""

    files: Mapping[str, FileSeen] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
