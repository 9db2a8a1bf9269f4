"""Rule for the optimizer-state functions that FSDP1 itself deprecated."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import bind
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.just_made import is_just_made
from fsdp_rules.state._governing.calls import DEPRECATED
from fsdp_rules.state._writing.verdict import verdicts
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME


class DeprecatedOptimState(Rule):
    """Deprecated functions for optimizer state.

    | FSDP1 | FSDP2 |
    |---|---|
    | `full_optim_state_dict(model, optim)` | `get_optimizer_state_dict`, full, on the CPU of rank 0 |
    | `sharded_optim_state_dict(model, optim)` | `get_optimizer_state_dict` |
    | `shard_full_optim_state_dict(state, model)` and the load | `set_optimizer_state_dict`, cut or sent by rank 0 |
    | `scatter_full_optim_state_dict(state, model)` and the load | `set_optimizer_state_dict`, sent by rank 0 |
    | `flatten_sharded_optim_state_dict(state, model, optim)` and the load | `set_optimizer_state_dict` |

    `rekey_optim_state_dict` is kept for a model that is not sharded: it only renames the keys of the dictionary. These
    functions use no context. A state that is converted and never loaded is reported, and still not loaded.
    """

    id = "FSDP306"
    name = "deprecated-optim-state"
    moves_together = True
    what_to_test = RESUME
    visits = (cst.Call,)
    before = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def load(model, optimizer, path):
    saved = torch.load(path) if dist.get_rank() == 0 else None
    sharded = FSDP.scatter_full_optim_state_dict(saved, model)
    optimizer.load_state_dict(sharded)
"""
    after = """
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

def load(model, optimizer, path):
    saved = torch.load(path) if dist.get_rank() == 0 else None
    set_optimizer_state_dict(
        model,
        optimizer,
        optim_state_dict=saved,
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
    for state in optimizer.state.values():
        state.update({key: value.clone() for key, value in state.items() if torch.is_tensor(value)})
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        known = file.fsdp1(node.func)
        if known == f"{FSDP}.rekey_optim_state_dict":
            arguments = bind(node, ("optim_state_dict", "optim_state_key_type", "model", "optim_input", "optim")) or {}
            model = arguments.get("model")
            claims = (node.func, *(argument.value for argument in node.args))
            if model is not None and (known_as("plain", model, file) or is_just_made(model, node, file)):
                message = (
                    f"rekey_optim_state_dict is kept: it reads the names of {file.code(model)}, which is not sharded"
                )
                yield Diagnosis(node, Level.INFO, message, "remove it if states are loaded by name", claims=claims)
                return
            yield Diagnosis(
                node,
                Level.MANUAL,
                "rekey_optim_state_dict converts between names and numbers, which only FSDP1 needed for loading",
                "load the state by name: set_optimizer_state_dict(model, optimizer, optim_state_dict=..., options=...)",
                claims=claims,
            )
        elif known in DEPRECATED:
            yield from verdicts(node, file)
