"""Rules for ``FSDP.set_state_dict_type`` and ``FSDP.get_state_dict_type``."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.state._governing.context import SET_STATE_DICT_TYPE, Kind, is_context_call, read_context
from fsdp_rules.state._governing.sticky import setting_problem
from fsdp_rules.state.local_state_dict import LocalStateDict
from fsdp_rules.verdict.diagnosis import Diagnosis, remove
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

_TAKEN = re.compile(r"(?<!\w)(?:load_|optim_|full_optim_|sharded_optim_)?state_dict(?:_to_load)?\(")


class SetStateDictType(Rule):
    """The kind of state, set once for all calls that follow.

    The call goes, and each `state_dict`, `load_state_dict` and optimizer state of the same file that it governed gets
    the options that it stood for. Where a file sets several kinds for one model, those of the same function count,
    and a call that none of them surely precedes is left for you, as are those that it governs in other files. Two
    calls that switch there and back go together or stay together; they stay where a context manager switches around
    code that it does not see.
    """

    id = "FSDP302"
    name = "set-state-dict-type"
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

def state(model):
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    return {"model": model.state_dict()}

def main():
    return state(FSDP(Net()))
"""
    after = """
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

def state(model):
    return {"model": get_model_state_dict(model)}

def main():
    return state(fully_shard(Net()))
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        if not isinstance(node, cst.Call) or not is_context_call(node, file, SET_STATE_DICT_TYPE):
            return
        context = read_context(node, file)
        problem = setting_problem(node, file)
        if not problem and context is not None:
            message = f"the kind of state ({context.kind.value}) is chosen by the options of each call"
            alone = not _TAKEN.search(file.text)
            yield Diagnosis(
                node,
                Level.REVIEW if alone else Level.SAFE,
                f"{message}; those that it governs are in other files, where each has a finding" if alone else message,
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
    """Asking for the current kind of state.

    FSDP2 keeps none: the options of each call say it. Usually the question served to restore a setting, and goes with
    it.
    """

    id = "FSDP303"
    name = "get-state-dict-type"
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def kind(model):
    return FSDP.get_state_dict_type(model).state_dict_type
"""
    after = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def kind(model):
    # TODO(fsdp-migrate FSDP303): FSDP2 keeps no kind of state that could be asked for
    return FSDP.get_state_dict_type(model).state_dict_type
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        if isinstance(node, cst.Call) and file.fsdp1(node.func) == f"{FSDP}.get_state_dict_type":
            yield Diagnosis(
                node,
                Level.MANUAL,
                "FSDP2 keeps no kind of state that could be asked for",
                "remove it with the setting that it restores, or note the kind in a variable of your own",
                claims=(node.func,),
            )
