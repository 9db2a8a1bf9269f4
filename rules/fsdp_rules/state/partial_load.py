"""Rule for loads that skip what does not fit."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import bind, given_to, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.state._governing.loading import result_is_read
from fsdp_rules.state._governing.site import state_site
from fsdp_rules.state._writing.dcp_imports import DCP
from fsdp_rules.state._writing.options import OPTIONS
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

PLANNERS = (f"{DCP}.DefaultLoadPlanner", f"{DCP}.default_planner.DefaultLoadPlanner")
ADVICE = "compare the names once: those that only the model or only the file has are skipped"


class PartialLoad(Rule):
    """Partial loads: strict=False and allow_partial_load=True.

    If no name matches, they silently load nothing: files of flat parameters (`LOCAL_STATE_DICT`), names that start with
    `module.` or `_orig_mod.`, names of another version of the model. FSDP1 behaves the same, but in a migration such
    files are used with new code. A call whose result the program reads is not reported. For a full state, the
    `missing_keys` of that result are always empty under FSDP2, and only `unexpected_keys` shows a mismatch.
    """

    id = "FSDP314"
    name = "partial-load"
    what_to_test = RESUME
    visits = (cst.Call,)
    shim = True
    before = """
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

def resume(net, path):
    model = FSDP(net)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = model.state_dict()
        dcp.load(state, checkpoint_id=path, planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
        model.load_state_dict(state)
"""
    after = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

def resume(net, path):
    model = fully_shard(net)
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id=path, planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
    set_model_state_dict(model, state)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Look for the two settings where they are written as literals."""
        if not file.project.may_trap(file.settings.traps):
            return
        full = file.resolved(node.func)
        if full in PLANNERS:
            arguments = bind(node, ("flatten_state_dict", "flatten_sharded_tensors", "allow_partial_load")) or {}
            if literal_bool(arguments.get("allow_partial_load")) is True:
                yield Diagnosis(
                    node,
                    Level.REVIEW,
                    "with allow_partial_load=True, names that the checkpoint lacks are silently skipped "
                    "(maybe all of them)",
                    ADVICE,
                )
        elif _skips(node, full, file):
            yield Diagnosis(
                node,
                Level.REVIEW,
                "with strict=False, names that do not match are silently skipped (maybe all of them)",
                ADVICE,
            )


def _skips(call: cst.Call, full: str | None, file: File) -> bool:
    if full == OPTIONS:
        strict = next((entry.value for entry in call.args if entry.keyword and entry.keyword.value == "strict"), None)
        return literal_bool(strict) is False and not _result_of_taker_is_read(call, file)
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "load_state_dict":
        return False
    site = state_site(call, file)
    return (
        site is not None
        and literal_bool(site.state.strict) is False
        and isinstance(file.parent(call), cst.Expr)
        and site.is_sharded
    )


def _result_of_taker_is_read(options: cst.Call, file: File) -> bool:
    """Whether ``options`` go straight into a call whose result the program reads."""
    taker = given_to(options, file)
    return taker is not None and result_is_read(taker, file)
