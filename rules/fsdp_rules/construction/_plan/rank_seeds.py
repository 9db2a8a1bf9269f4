"""Whether ranks build different weights before they are sharded, since each seeds torch in its own way."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.called import called
from fsdp_rules.file.expressions import last_name, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.project.rank_texts import RANK

SEEDED = "assumes all ranks build the same weights, though the seed differs by rank: FSDP2 cuts shards in other places"
SAME_SEED = "seed all ranks alike until the model is built, or broadcast rank 0's weights before they are sharded"
#: What seeds the random numbers of weights: torch's, Lightning's and transformers' functions.
_SEEDS = frozenset({"manual_seed", "manual_seed_all", "seed_everything", "set_seed"})
#: What gives all ranks the same weights, whatever the seed.
_LOADS = frozenset({"broadcast", "from_pretrained"})


def differ_by_rank(call: cst.Call, plan: ShardPlan, file: File) -> bool:
    """Whether the last seed above ``call``, in its function, is formed from a rank, and nothing evens the weights.

    Functions of the file that are called there are read as well. What only some runs broadcast evens nothing.
    """
    function = file.function(call)
    if plan.on_meta or function is None or (plan.sync is None and "sync_module_states" in file.text):
        return False
    if plan.sync is not None and literal_bool(plan.sync) is True:
        return False
    line = file.span(call).line
    above: list[cst.Call] = []
    for one in file.inside(function.body, cst.Call):
        if file.span(one).line < line:
            run = called(one, file)
            above += [one, *(file.inside(run.body, cst.Call) if run is not None and run is not function else ())]
    seeds = [one for one in above if last_name(one.func) in _SEEDS and one.args]
    if not seeds or any(last_name(one.func) in _LOADS for one in above):
        return False
    return _names_rank(seeds[-1].args[0].value, file)


def _names_rank(value: cst.BaseExpression, file: File, depth: int = 2) -> bool:
    for name in file.inside(value, cst.Name):
        parent = file.parent(name)
        is_attribute = isinstance(parent, cst.Attribute) and parent.attr is name
        made = name if is_attribute else file.value(name)
        if RANK.search(name.value) or (depth and made is not name and _names_rank(made, file, depth - 1)):
            return True
    return False
