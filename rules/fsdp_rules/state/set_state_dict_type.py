"""Rules for ``FSDP.set_state_dict_type`` and ``FSDP.get_state_dict_type``."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.state._governing.context import SET_STATE_DICT_TYPE, is_context_call, read_context
from fsdp_rules.state._governing.state_settings import Kind
from fsdp_rules.state._governing.sticky import setting_problem
from fsdp_rules.state._writing.verdict import refused_under
from fsdp_rules.state.local_state_dict import LocalStateDict
from fsdp_rules.verdict.diagnosis import Diagnosis, remove
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

_TAKEN = re.compile(r"(?<!\w)(?:load_|optim_|full_optim_|sharded_optim_)?state_dict(?:_to_load)?\(")


class SetStateDictType(Rule):
    """FSDP.set_state_dict_type().

    The call is removed, and each `state_dict`, `load_state_dict` and optimizer state of the same file that it affected
    gets its options. If a file sets several types for one model, only the ones in the same function count. A call is
    `manual` if no setting certainly precedes it, or if it is in another file. Two calls that set and restore the type
    are rewritten or kept together. They are kept if a context manager sets the type for code that it does not contain.
    """

    id = "FSDP302"
    name = "set-state-dict-type"
    moves_together = True
    what_to_test = RESUME
    visits = (cst.Call,)
    before = """
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

def save(model, path):
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    dcp.save({"model": model.state_dict()}, checkpoint_id=path)

def main():
    save(FSDP(Net()), "checkpoint")
"""
    after = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

def save(model, path):
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=path)

def main():
    save(fully_shard(Net()), "checkpoint")
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        if not is_context_call(node, file, SET_STATE_DICT_TYPE):
            return
        context = read_context(node, file)
        problem = setting_problem(node, file) or refused_under(node, file)
        if not problem and context is not None:
            message = context.kind.removed
            alone = not _TAKEN.search(file.text)
            yield Diagnosis(
                node,
                Level.REVIEW if alone else Level.SAFE,
                f"{message}, and calls in other files have their own findings" if alone else message,
                edits=(remove(file.statement(node)),),
                claims=(node.func,),
                consumes=context.consumes,
            )
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            f"set_state_dict_type cannot be rewritten: {problem}",
            "pass StateDictOptions(...) to get_model_state_dict and get_optimizer_state_dict instead",
            claims=(node.func,),
            rule=LocalStateDict.id if context is not None and context.kind is Kind.LOCAL else "",
        )


class GetStateDictType(Rule):
    """FSDP.get_state_dict_type().

    FSDP2 has no current type: the options of each call set it. Usually the result was used to restore a setting, and is
    removed with it.
    """

    id = "FSDP303"
    name = "get-state-dict-type"
    moves_together = True
    what_to_test = RESUME
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def kind(model):
    return FSDP.get_state_dict_type(model).state_dict_type
"""
    after = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def kind(model):
    # TODO(fsdp-migrate FSDP303): FSDP2 has no current state dict type
    return FSDP.get_state_dict_type(model).state_dict_type
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        if file.fsdp1(node.func) == f"{FSDP}.get_state_dict_type":
            yield Diagnosis(
                node,
                Level.MANUAL,
                "FSDP2 has no current state dict type",
                "remove it together with the setting that it restores, or keep the type in a variable",
                claims=(node.func,),
            )
