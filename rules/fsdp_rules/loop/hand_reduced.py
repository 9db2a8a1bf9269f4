"""Rule for norms of gradients that a program sums over ranks itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.loop._aware import is_aware
from fsdp_rules.model.parameters import sharded_parameter
from fsdp_rules.model.sharded import Why, sharded
from fsdp_rules.model.wrapping import model_of_parameter
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import CLIPPING

NORMS = frozenset({"_foreach_norm", "norm", "vector_norm"})
REDUCTIONS = frozenset({"all_reduce", "reduce"})
#: What a gradient may go through on its way into a norm.
PASSED_ON = frozenset({"abs", "cpu", "data", "detach", "double", "flatten", "float", "pow", "square", "to", "view"})
#: Code that knows of DTensors already.
SUMMED = "the norm of a DTensor may be global already: all_reduce then counts it twice"
ADVICE = (
    "use p.grad.to_local(), this rank's shard (grad.norm() ** 2 is global under FSDP2, "
    "grad.norm().item() is not). Or replace the whole computation with "
    "torch.nn.utils.clip_grad_norm_(model.parameters(), limit).full_tensor()"
)


class HandReducedNorms(Rule):
    """Gradient norms reduced by hand.

    FSDP1's gradients are plain tensors, each rank's own shard, so programs take a norm of each, add the squares and
    reduce the sum over all ranks. FSDP2's are DTensors. Their squared norm is already global, and reducing it again
    counts every rank's part several times. A DTensor raises when it is combined with a plain tensor or used in a
    collective. `grad.to_local()` is the plain shard.
    """

    id = "FSDP216"
    name = "hand-reduced-norm"
    markers = ((".grad", "reduce"),)
    open_world = True
    what_to_test = CLIPPING
    visits = (cst.Module,)
    shim = True
    before = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, batch):
    model = FSDP(model)
    model(batch).backward()
    total = sum(parameter.grad.norm() ** 2 for parameter in model.parameters())
    dist.all_reduce(total)
    return total.sqrt()
"""
    after = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

def train(model, batch):
    fully_shard(model)
    model(batch).backward()
    # TODO(fsdp-migrate FSDP216): the norm of a DTensor may be global already: all_reduce then counts it twice
    total = sum(parameter.grad.norm() ** 2 for parameter in model.parameters())
    dist.all_reduce(total)
    return total.sqrt()
"""

    def visit(self, node: cst.Module, file: File) -> Iterable[Diagnosis]:
        """Every gradient that a function or class takes a norm of, where it or its caller reduces over ranks."""
        if "fsdp1" not in file.project.flags:
            return
        for gradient in _normed(file):
            whole = _outermost(gradient, file)
            if whole is None or not _may_be_sharded(gradient, file):
                continue
            if _is_reduced(whole, file) and not is_aware(gradient, file):
                sure = sharded_parameter(gradient.value, file) is Certainty.YES
                message = SUMMED if sure else f"if these parameters are sharded, {SUMMED}"
                yield Diagnosis(gradient, Level.MANUAL, message, ADVICE)


def _normed(file: File) -> Iterator[cst.Attribute]:
    """Every ``p.grad`` that is read as a whole, in a function (or a statement of a class) that takes norms."""
    norms = {_around(call, file) for call in _calls(NORMS, file)}
    for node in file.nodes(cst.Attribute):
        if node.attr.value != "grad" or _around(node, file) not in norms or file.resolved(node) is not None:
            continue
        parent = file.parent(node)
        if isinstance(parent, cst.Attribute) and parent.attr.value not in PASSED_ON | NORMS:
            continue
        if not isinstance(parent, cst.AssignTarget | cst.Comparison | cst.ComparisonTarget):
            yield node


def _around(node: cst.CSTNode, file: File) -> cst.CSTNode:
    return file.function(node) or file.statement(node)


def _may_be_sharded(gradient: cst.Attribute, file: File) -> bool:
    """Whether nothing says that the gradient's model is only wrapped further down."""
    model = model_of_parameter(gradient.value, file)
    return model is None or sharded(model, file).why is not Why.LATER


def _is_reduced(whole: cst.CSTNode, file: File) -> bool:
    """Whether something is reduced over ranks in ``whole``, or in another function of the file that calls it."""
    for call in _calls(REDUCTIONS, file):
        other = _outermost(call, file)
        if other is None or (_last(call) == "reduce" and file.resolved(call.func) != "torch.distributed.reduce"):
            continue
        if other is whole:
            return True
        if isinstance(whole, cst.FunctionDef) and any(
            _outermost(caller, file) is other for caller in _calls(frozenset({whole.name.value}), file)
        ):
            return True
    return False


def _outermost(node: cst.CSTNode, file: File) -> cst.FunctionDef | cst.ClassDef | None:
    around = [entry for entry in file.ancestors(node) if isinstance(entry, cst.FunctionDef | cst.ClassDef)]
    return around[-1] if around else None


def _calls(names: frozenset[str], file: File) -> Iterator[cst.Call]:
    return (call for call in file.nodes(cst.Call) if _last(call) in names)


def _last(call: cst.Call) -> str:
    func = call.func
    return func.attr.value if isinstance(func, cst.Attribute) else func.value if isinstance(func, cst.Name) else ""
