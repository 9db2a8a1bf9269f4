"""All causes, in the order in which they are asked: the first that fits is named."""

from __future__ import annotations

from fsdp_migrate.verify.causes.cause import Cause, Named
from fsdp_migrate.verify.causes.clipping import ClippedTwice, LoggedNorm, NotClipped, OrderOfNorm, OtherLimit
from fsdp_migrate.verify.causes.data import OtherData
from fsdp_migrate.verify.causes.gradients import (
    AccumulatedIn,
    MissingGradients,
    NotReduced,
    OrderOfSummation,
    OtherDivisor,
    SharedInput,
)
from fsdp_migrate.verify.causes.optimizer import OtherGroups, OtherSetting, SharedMoments, StaleOptimizer
from fsdp_migrate.verify.causes.precision import BufferDtype, InputDtype, OtherReduceDtype, ParamDtype
from fsdp_migrate.verify.causes.resume import RESUMING, NotResumed
from fsdp_migrate.verify.causes.structure import InNoUnit, MissingUnit, OtherMesh, OtherReshard, Untied
from fsdp_migrate.verify.causes.weights import InitialisedLater, NotLoaded, ReplicasApart
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference

CAUSES: tuple[Cause, ...] = (
    OtherData(),
    Untied(),
    NotResumed(),
    InNoUnit(),
    ReplicasApart(),
    NotLoaded(),
    InitialisedLater(),
    BufferDtype(),
    ParamDtype(),
    InputDtype(),
    StaleOptimizer(),
    NotReduced(),
    MissingGradients(),
    OtherDivisor(),
    OtherReduceDtype(),
    SharedInput(),
    OrderOfSummation(),
    AccumulatedIn(),
    OtherLimit(),
    ClippedTwice(),
    LoggedNorm(),
    NotClipped(),
    OrderOfNorm(),
    OtherGroups(),
    OtherSetting(),
    SharedMoments(),
    MissingUnit(),
    OtherReshard(),
    OtherMesh(),
)


def name_cause(comparison: Comparison, first: Difference) -> Named | None:
    """The cause of the difference that decides, or None where it cannot be told."""
    return next(
        (named for cause in (*RESUMING, *CAUSES) if (named := cause.named(comparison, first)) is not None), None
    )
