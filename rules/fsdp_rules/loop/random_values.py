"""Rule for random values that are drawn for parameters once they are sharded."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.model.guards import is_ruled_out
from fsdp_rules.model.parameters import sharded_parameter
from fsdp_rules.model.sharded import sharded_owner, sharded_part
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.wrapping import wrapped_module, wrapping_call
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

#: Methods in which models draw their first values, by what people call them.
INITIALISES = re.compile(r"^_?(re)?(set|init|initiali[sz]e)_?(all_)?(param(eter)?s|weights?|modules?)$")
#: Functions of torch.nn.init, and methods of tensors, that draw random values.
DRAWS = re.compile(
    r"^(\w*normal_?|uniform_?|(xavier|kaiming|glorot)_\w+|orthogonal_?|sparse_|trunc_normal_?|bernoulli_|random_|"
    r"exponential_|cauchy_|geometric_|rand\w*_like|bernoulli)$"
)
#: Functions that draw as many values as a tensor has.
LIKE = ("torch.rand_like", "torch.randn_like", "torch.randint_like", "torch.bernoulli")
DRAWN = "random values of DTensors differ from FSDP1's, and may be equal on all ranks"


class RandomValues(Rule):
    """Random initialisation after sharding.

    Random numbers drawn for a DTensor differ from those that FSDP1 draws for its shards. With CPU offloading, all ranks
    and all layers of one shape may even get the same numbers. Initialise the model before it is sharded, or its full
    parameters inside `summon_full_params`.
    """

    id = "FSDP226"
    name = "random-values"
    markers = ("reset_parameters(", "init_weights(")
    what_to_test = EFFECT
    visits = (cst.Call,)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    model = FSDP(model, use_orig_params=True)
    model.reset_parameters()
    return model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP226): random values of DTensors differ from FSDP1's, and may be equal on all ranks
    model.reset_parameters()
    return model
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Methods that initialise a sharded model or its parts, and functions that fill one of its parameters."""
        if "fsdp1" not in file.project.flags:
            return
        held = _filled(node, file)
        if held is Certainty.NO or is_summoned(node, file):
            return
        # What draws is left as it is; how its model is named may change.
        draws = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        if isinstance(node.func, cst.Attribute) and is_not_sharded_yet(node, node.func.value, file):
            return
        yield Diagnosis(
            draws,
            Level.MANUAL,
            DRAWN if held is Certainty.YES else f"if this model is sharded: {DRAWN}",
            "initialise the model before it is sharded, or inside fsdp_compat.summon_full_params(model)",
        )


def _filled(call: cst.Call, file: File) -> Certainty:
    """How sure it is that ``call`` fills parameters of a sharded model with random values."""
    func = call.func
    if isinstance(func, cst.Attribute) and INITIALISES.search(func.attr.value):
        if _unit(func.value, file) is not None or _is_given_to_a_wrap(func.value, call, file):
            return Certainty.YES
        return sharded_part(func.value, file)
    if not DRAWS.search(last_name(func)):
        return Certainty.NO
    full = file.resolved(func) or ""
    drawn = call.args[0].value if full.startswith(("torch.nn.init.", *LIKE)) and call.args else None
    if drawn is None and isinstance(func, cst.Attribute) and func.attr.value.endswith("_"):
        drawn = func.value
    while isinstance(drawn, cst.Attribute) and drawn.attr.value == "data":
        drawn = drawn.value
    if drawn is None:
        return Certainty.NO
    of_part = sharded_part(drawn.value, file) if isinstance(drawn, cst.Attribute) else Certainty.NO
    return max(sharded_parameter(drawn, file), of_part)


def _is_given_to_a_wrap(node: cst.BaseExpression, place: cst.Call, file: File) -> bool:
    """Whether the same function has wrapped ``node`` above ``place`` under another name."""
    owner = file.function(place) or file.module
    for call in file.inside(owner, cst.Call):
        module = wrapped_module(call) if wrapping_call(call, file) is not None else None
        if module is not None and file.span(call).line < file.span(place).line and file.code(module) == file.code(node):
            return not is_ruled_out(place, file.code(node), file)
    return False


def _unit(node: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """The sharded model over whose modules a loop around ``node`` runs."""
    if not isinstance(node, cst.Name):
        return None
    for ancestor in file.ancestors(node):
        if isinstance(ancestor, cst.For) and node.value in {
            name.value for name in file.inside(ancestor.target, cst.Name)
        }:
            for call in file.inside(ancestor.iter, cst.Call):
                func = call.func
                if isinstance(func, cst.Attribute) and func.attr.value in ("modules", "named_modules", "children"):
                    return sharded_owner(func.value, file)
    return None
