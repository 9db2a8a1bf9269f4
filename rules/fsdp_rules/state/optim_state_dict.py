"""Rule for ``FSDP.optim_state_dict``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.state._writing.verdict import verdicts
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME


class OptimStateDict(Rule):
    """FSDP.optim_state_dict().

    `get_optimizer_state_dict` returns the same: full or sharded as the surrounding `state_dict_type` says, with the
    same keys and parameter groups. FSDP1's default, the full state in CPU memory on every rank, has no option in FSDP2:
    where other ranks than 0 read it, a loop moves its tensors, or `fsdp_compat.optim_state_dict` returns it where no
    statement can. FSDP1's states are copies; where the program may read one after a later step, its step counters (of
    a sharded state: all of it) are copied too. An optimizer that never made a step has no state under FSDP1. Here torch
    makes a step with a learning rate of 0, which Adam counts: `fsdp_compat.optim_state_dict` takes a state that may be
    taken before the first step, and leaves the optimizer as it is.
    """

    id = "FSDP304"
    name = "optim-state-dict"
    moves_together = True
    spelled = ("optim_state_dict",)
    what_to_test = RESUME
    visits = (cst.Call,)
    before = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, optimizer, path):
    state = FSDP.optim_state_dict(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(state, path)
"""
    after = """
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

def save(model, optimizer, path):
    state = get_optimizer_state_dict(
        model,
        optimizer,
        options=StateDictOptions(full_state_dict=True, cpu_offload=True),
    )
    if dist.get_rank() == 0:
        torch.save(state, path)
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        if isinstance(node, cst.Call) and file.fsdp1(node.func) == f"{FSDP}.optim_state_dict":
            yield from verdicts(node, file)
