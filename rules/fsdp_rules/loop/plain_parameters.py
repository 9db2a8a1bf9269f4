"""Rule for ``full_tensor()`` of parameters that FSDP ignores."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.ancestors import branches, tests_above, tests_around
from fsdp_rules.file.expressions import attribute_of, brief
from fsdp_rules.file.file import File
from fsdp_rules.model.parameters import sharded_parameter
from fsdp_rules.model.wrap_given import IGNORED, wrap_given
from fsdp_rules.model.wrapping import binds, loops_around, model_of_parameter
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: What a test says that lets DTensors alone through.
ASKS = re.compile(r"\bDTensor\b|\bfull_tensor\b|\bis_dtensor\b|\bAttributeError\b")
WHOLE = "full_tensor"


class PlainParameters(Rule):
    """full_tensor() of ignored parameters.

    Parameters that FSDP ignores are plain tensors, and only DTensors have `full_tensor()`. Code that copies the
    weights of a sharded model elsewhere, as a sync of weights with an inference engine does, calls it on each
    parameter and raises AttributeError at the first ignored one. An ignored parameter is whole already.
    """

    id = "FSDP243"
    name = "plain-parameters"
    markers = (WHOLE,)
    what_to_test = "Copy the weights once with the ignored parameters among them, and compare names and shapes."
    visits = (cst.Call,)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def sync(net, send):
    model = FSDP(net, ignored_modules=[net.frozen], use_orig_params=True)
    for name, param in model.named_parameters():
        send(name, param.full_tensor())
"""
    after = """
import fsdp_compat

def sync(net, send):
    model = fsdp_compat.shard(net, ignored_modules=[net.frozen], use_orig_params=True)
    for name, param in model.named_parameters():
        # TODO(fsdp-migrate FSDP243): param may be an ignored parameter, a plain tensor without full_tensor()
        send(name, param.full_tensor())
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Look at what each call is of, and at the tests around it."""
        value = attribute_of(node.func, WHOLE)
        if value is None or node.args:
            return
        given = _ignores(value, file)
        if given is Certainty.NO or _is_asked(node, file):
            return
        name = brief(file.code(value))
        yield Diagnosis(
            node,
            Level.MANUAL if given is Certainty.YES else Level.REVIEW,
            f"{name} may be an ignored parameter, a plain tensor without {WHOLE}()",
            f"write {name}.{WHOLE}() if isinstance({name}, DTensor) else {name}",
        )


def _is_asked(call: cst.Call, file: File) -> bool:
    """Whether a test or a ``try`` around ``call`` is for tensors that have the method."""
    tries = (one for one, child in branches(call, file) if isinstance(one, cst.Try) and child is one.body)
    caught = (handler.type for one in tries for handler in one.handlers if handler.type is not None)
    tests = (*(test for test, _ in tests_around(call, file)), *tests_above(call, file), *caught)
    return any(ASKS.search(file.code(test)) for test in tests)


def _ignores(value: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``value`` runs over parameters some of which are ignored, by FSDP1 or ``fully_shard``."""
    model = model_of_parameter(value, file)
    if sharded_parameter(value, file) is not Certainty.NO:
        return wrap_given(model, file).gives("ignored", *IGNORED)
    is_native = "ignored_params" in file.project.flags and file.project.may_trap(file.settings.traps)
    is_one = model is not None or (isinstance(value, cst.Name) and _is_of_state(value, file))
    return Certainty.MAYBE if is_native and is_one else Certainty.NO


def _is_of_state(name: cst.Name, file: File) -> bool:
    """Whether ``name`` runs over the state of a module."""
    loops = (loop for loop in loops_around(name, file) if binds(loop.target, name.value))
    return any(".state_dict()" in file.code(loop.iter) for loop in loops)
