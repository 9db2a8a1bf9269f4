"""Rule for hooks that change a state dict while it is made."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

REGISTERS = frozenset({"_register_state_dict_hook", "register_state_dict_post_hook", "register_state_dict_pre_hook"})
#: What a hook does to the entries of the state, or to the parameters that it merges.
CHANGES = re.compile(r"\]\s*=[^=]|\.pop\(|\bdel\b|\.copy_\(|\.data\b|@|\.matmul\(|\.mm\(")


class StateDictHooks(Rule):
    """Hooks on state_dict().

    Under FSDP1 a hook ran while the full parameters were gathered. Under FSDP2 it gets DTensors: each rank gets its own
    shards. Tensors that it merges are DTensors too, tensors that it adds are plain, and `get_model_state_dict` raises
    an error for keys that the model does not have.
    """

    id = "FSDP315"
    name = "state-dict-hooks"
    markers = ("register_state_dict_",)
    what_to_test = RESUME
    visits = (cst.Call,)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def merge(module, state, prefix, metadata):
    state[prefix + "weight"] = module.weight + module.up @ module.down

def build(model):
    model.register_state_dict_post_hook(merge)
    return FSDP(model)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def merge(module, state, prefix, metadata):
    state[prefix + "weight"] = module.weight + module.up @ module.down

def build(model):
    # TODO(fsdp-migrate FSDP315): this hook changes the state dict, and gets DTensors instead of full parameters
    model.register_state_dict_post_hook(merge)
    return fully_shard(model)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Every hook that the program registers for a state dict, and that changes it."""
        if "fsdp1" not in file.project.flags:
            return
        if last_name(node.func) not in REGISTERS or not node.args:
            return
        text = _body(node.args[0].value, file)
        if text is not None and CHANGES.search(text) is None:
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            "this hook changes the state dict, and gets DTensors instead of full parameters",
            "change the result of get_model_state_dict instead, or use only DTensor operations and the model's keys",
        )


def _body(hook: cst.BaseExpression, file: File) -> str | None:
    """The text of the function ``hook``, None where the file does not define it."""
    name = last_name(hook)
    for function in file.nodes(cst.FunctionDef):
        if function.name.value == name:
            return file.code(function.body)
    return file.code(hook) if isinstance(hook, cst.Lambda) else None
