"""Rule for sharded parameters that a program writes to files, or sends to other processes, without a state dict."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.parameters import sharded_parameters
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.state.raw_optimizer import is_raw_state
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

#: Functions that write what they are given.
WRITE = frozenset(
    {
        *(
            "cloudpickle.dump",
            "cloudpickle.dumps",
            "dill.dump",
            "dill.dumps",
            "joblib.dump",
            "numpy.save",
            "numpy.savez",
        ),
        *("numpy.savez_compressed", "pickle.dump", "pickle.dumps", "safetensors.torch.save"),
        *("safetensors.torch.save_file", "torch.save"),
    }
)
#: Functions that pickle what they are given for other processes.
SEND = frozenset(
    {
        *("ray.put", "torch.distributed.all_gather_object", "torch.distributed.broadcast_object_list"),
        *("torch.distributed.gather_object", "torch.distributed.scatter_object_list"),
        "torch.distributed.send_object_list",
    }
)
_CONTAINERS = (cst.Dict, cst.List, cst.Tuple)
ADVICE = (
    "where the values are collected, use parameter.to_local(), this rank's shard (FSDP1 cut its flat parameter at "
    "other elements), or parameter.full_tensor() on all ranks"
)


class SavedParameters(Rule):
    """Parameters and gradients that are saved or sent without a state dict.

    FSDP1's parameters are plain tensors outside of its forwards, each rank's own shard. FSDP2's are DTensors, also
    under `fsdp_compat`. A file with DTensors has other shapes, and loads only with a process group of the same size.
    The same is true for objects that are sent to other ranks. `parameter.to_local()` returns a plain tensor.
    """

    id = "FSDP317"
    name = "saved-parameters"
    what_to_test = RESUME
    visits = (cst.Call,)
    shim = True
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def run(model, rank):
    model = FSDP(model, use_orig_params=True)
    torch.save([p.detach().cpu() for p in model.parameters()], f"part{rank}.pt")
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def run(model, rank):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP317): this writes DTensors (FSDP1: plain tensors), which a single process cannot load
    torch.save([p.detach().cpu() for p in model.parameters()], f"part{rank}.pt")
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Calls that pickle sharded tensors, or containers with some."""
        if "fsdp1" not in file.project.flags or is_summoned(node, file):
            return
        taker = file.resolved(node.func)
        if taker not in WRITE and taker not in SEND:
            return
        held = max((_tensors(one.value, file) for one in node.args), default=Certainty.NO)
        if held is Certainty.NO:
            return
        done = (
            "this writes DTensors (FSDP1: plain tensors), which a single process cannot load"
            if taker in WRITE
            else f"{last_name(node.func)}() sends DTensors (FSDP1: plain tensors with this rank's values)"
        )
        yield Diagnosis(
            node, Level.MANUAL, done if held is Certainty.YES else f"if this model is sharded here, {done}", ADVICE
        )


def _tensors(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node`` is, or has in it, parameters of a sharded model or their gradients.

    FSDP311 speaks about states of optimizers.
    """
    made = file.objects.origin(node)
    if isinstance(made, cst.Call) and is_raw_state(made, file):
        return Certainty.NO
    found = value_of(node, file)
    first = (_tensors(one.value, file) for one in made.elements) if isinstance(made, _CONTAINERS) else ()
    return max(sharded_parameters(node, file), found.gradient, found.gradients, *first)
