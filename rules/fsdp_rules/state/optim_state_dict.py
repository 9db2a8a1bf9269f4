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

    `get_optimizer_state_dict` returns the same state: full or sharded according to the surrounding `state_dict_type`,
    with the same keys and parameter groups. FSDP2 has no option for FSDP1's default, the full state in CPU memory on
    every rank. If ranks other than 0 read it, a loop moves its tensors, or, if there is no place for a statement,
    `fsdp_compat.optim_state_dict` returns it. FSDP1's states are copies. If the program may read one after a later
    step, the rewrite also copies its step counters (all of a sharded state). An optimizer that has not made a step has
    no state under FSDP1. Here torch runs a step with a learning rate of 0, which Adam counts. If the state may be taken
    before the first step, the output uses `fsdp_compat.optim_state_dict`, which does not change the optimizer.
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

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        if file.fsdp1(node.func) == f"{FSDP}.optim_state_dict":
            yield from verdicts(node, file)
