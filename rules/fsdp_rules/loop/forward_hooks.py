"""Rule for hooks before and after the forward of a sharded model."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import call_text
from fsdp_rules.file.tree import Code
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.model.sharded import sharded, wrapper_of
from fsdp_rules.model.wrap_given import wrap_given
from fsdp_rules.model.wrapping import loops_around
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

BEFORE = "register_forward_pre_hook"
AFTER = "register_forward_hook"
FIRST = "prepend=True makes the hook run before FSDP2 casts the inputs, as under FSDP1"
CAST = "FSDP2 casts the inputs to param_dtype before this hook (FSDP1: after it)"
ALONE = "pass prepend=True if it is the only hook registered before this model's forward"
ORDER = "with several hooks, pass prepend=True to each, and register the one that must run first last"
SEEN = "assumes this hook does not use the inputs, which it now gets in param_dtype (FSDP1 passed the original ones)"


class ForwardHooks(Rule):
    """register_forward_pre_hook and register_forward_hook on a wrapped model.

    A hook on FSDP1's wrapper runs before everything that FSDP1 does, and gets the original inputs. FSDP2 casts them to
    `param_dtype` in its own hook, which runs first: a hook registered later gets the cast inputs, and its result is not
    cast. `prepend=True` puts a hook before FSDP2's; the shim does this automatically. Without mixed precision there is
    no difference. Hooks registered before the model is wrapped run after the cast in both.
    """

    id = "FSDP236"
    name = "forward-hooks"
    what_to_test = EFFECT
    visits = (cst.Call,)
    shim = True
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

def build(net, add_noise):
    model = FSDP(net, mixed_precision=MixedPrecision(torch.bfloat16, torch.float32))
    model.register_forward_pre_hook(add_noise)
    return model
"""
    after = """
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

def build(net, add_noise):
    model = fully_shard(
        net,
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    model.register_forward_pre_hook(add_noise, prepend=True)
    return model
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Hooks that are given to the wrapper of a model with mixed precision."""
        if not isinstance(node.func, cst.Attribute):
            return
        model, method = node.func.value, node.func.attr.value
        # The model inside of the wrapper runs its hooks after the cast in both.
        if method not in (BEFORE, AFTER) or wrapper_of(model, file) is not None:
            return
        if method == BEFORE and file.settings.to == "shim":
            return
        held = sharded(model, file).certainty
        if held is Certainty.NO or is_not_sharded_yet(node, model, file):
            return
        if wrap_given(model, file).gives("mixed_precision", "mixed_precision") is Certainty.NO:
            return
        prefix = "" if held is Certainty.YES else f"if {file.code(model)} is sharded: "
        if method == AFTER:
            yield Diagnosis(node, Level.REVIEW, f"{prefix}{SEEN}")
        elif _prepend(node) is None and held is Certainty.YES and _is_alone(node, file):
            yield Diagnosis(node, Level.SAFE, FIRST, edits=(Replace(node, lambda code: _prepended(node, code)),))
        elif _prepend(node) is not True:
            alone = _prepend(node) is None and _is_alone(node, file)
            yield Diagnosis(node, Level.MANUAL, f"{prefix}{CAST}", ALONE if alone else ORDER)


def _prepend(call: cst.Call) -> bool | None:
    """What ``call`` gives ``prepend``: None for nothing, and False for what is not written there."""
    if any(argument.star for argument in call.args):
        return False
    value = next((entry.value for entry in call.args if entry.keyword and entry.keyword.value == "prepend"), None)
    return None if value is None else bool(literal_bool(value))


def _prepended(call: cst.Call, code: Code) -> str:
    given = [f"{one.keyword.value}={code(one.value)}" if one.keyword else code(one.value) for one in call.args]
    return call_text(code(call.func), [*given, "prepend=True"])


def _is_alone(call: cst.Call, file: File) -> bool:
    """Whether ``call`` registers the model's one hook of this kind: several would run in another order."""
    if next(loops_around(call, file), None) is not None:
        return False
    name = file.code(call.func)
    return not any(one is not call and file.code(one.func) == name for one in file.nodes(cst.Call))
