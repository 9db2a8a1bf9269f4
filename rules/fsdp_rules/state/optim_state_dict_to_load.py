"""Rule for ``FSDP.optim_state_dict_to_load``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.wrap_given import wrap_given
from fsdp_rules.project.project import Certainty
from fsdp_rules.state._governing.calls import state_call
from fsdp_rules.state._writing.verdict import verdicts
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

COUNTS = "FSDP1 keeps counting steps in this state, which may be loaded or saved again; FSDP2 copies it"
ADVICE = (
    "to keep the numbers, shard by fsdp_compat.shard and load by fsdp_compat.optim_state_dict_to_load. To leave "
    "the state unchanged, keep the rewrite"
)


class OptimStateDictToLoad(Rule):
    """FSDP.optim_state_dict_to_load().

    FSDP1 converts a state keyed by name to one for `optimizer.load_state_dict`; both steps become one
    `set_optimizer_state_dict`. Where only rank 0 has the state (`rank0_only=True`), or all ranks read one file,
    `broadcast_from_rank0` sends it. Both argument orders are accepted: the current one, and that of torch 2.0 with the
    state first. If the result is not loaded directly into the optimizer, `fsdp_compat.optim_state_dict_to_load` returns
    it.

    With `use_orig_params=False`, its default, FSDP1 saves one `step` tensor for all parameters of a unit. FSDP2 loads
    it unchanged, and each parameter would count every step of the others, so a loop gives each its own copy. With
    `use_orig_params=True`, FSDP1 keeps counting in the loaded state itself. If that state is kept in memory and loaded
    or saved again, it has later step counts, and the finding is `manual`. fsdp_compat behaves like FSDP1.
    """

    id = "FSDP305"
    name = "optim-state-dict-to-load"
    moves_together = True
    what_to_test = RESUME
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def load(model, optimizer, saved):
    flat = FSDP.optim_state_dict_to_load(model, optimizer, saved)
    optimizer.load_state_dict(flat)
"""
    after = """
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

def load(model, optimizer, saved):
    set_optimizer_state_dict(
        model,
        optimizer,
        optim_state_dict=saved,
        options=StateDictOptions(full_state_dict=True),
    )
    for state in optimizer.state.values():
        state.update({key: value.clone() for key, value in state.items() if torch.is_tensor(value)})
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        if file.fsdp1(node.func) == f"{FSDP}.optim_state_dict_to_load":
            yield from verdicts(node, file)
            given = state_call(node, file)
            if given is None or not known_as("read_again", node.func, file):
                return
            if wrap_given(given.model, file).keeps_originals() is not Certainty.NO:
                # The call itself is rewritten.
                yield Diagnosis(file.function(node) or node, Level.MANUAL, COUNTS, ADVICE)
