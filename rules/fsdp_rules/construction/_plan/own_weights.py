"""Models of which each rank builds other weights, with a seed of its own: FSDP1 trains a part of each rank's."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.wrap_given import WrapGiven
from fsdp_rules.project.value_facts import NONE
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

SEEDED = (
    "assumes all ranks build the same weights, although the seed differs by rank: FSDP2 cuts shards at other elements"
)
SAME_SEED = "seed all ranks alike until the model is built, or broadcast rank 0's weights before they are sharded"
BUILT = "each rank has its own seed, and without sync_module_states FSDP1 trains a mix of the ranks' weights"


def plan_own_weights(call: cst.Call, plan: ShardPlan, file: File) -> Iterator[Diagnosis]:
    """Ask for the helper, which puts together what FSDP1 does; what is sharded may also have been loaded."""
    synced = WrapGiven(((file.path, file.span(call).line),), file).texts("sync_module_states")
    if plan.on_meta or synced == {"True"}:
        return
    if known_as("rank_built", call, file):
        plan.helper.append(BUILT)
    elif known_as("rank_seeded", call, file) and (plan.sync is not None or synced <= {NONE, "False"}):
        yield Diagnosis(call, Level.REVIEW, SEEDED, SAME_SEED)
