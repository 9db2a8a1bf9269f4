"""Rule for arithmetic on the gradients of a sharded model, done by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import brief, call_of, called_on, given_to, last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._aware import is_aware, is_left_out
from fsdp_rules.loop._formatted import is_formatted
from fsdp_rules.loop._not_sharded_yet import is_filled_before_sharding
from fsdp_rules.loop._own_optimizer import is_optimizer_class, own_optimizer
from fsdp_rules.loop._plain_tensors import is_made
from fsdp_rules.loop._sent import COLLECTIVES, is_collective, sent, sent_together
from fsdp_rules.loop.hand_reduced import HandReducedNorms
from fsdp_rules.model.flowing import known_as, value_of
from fsdp_rules.model.parameters import sharded_gradient, sharded_parameter
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.tensors import same_values
from fsdp_rules.model.wrapping import binds, loops_around, model_of_parameters
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import CLIPPING

#: What takes no number out of a gradient, or changes it in place alike on every shard.
HARMLESS = frozenset(
    {
        *("add_", "clamp_", "clip_", "data_ptr", "detach_", "device", "div_", "dtype", "mul_", "nan_to_num_", "neg_"),
        *("record_stream", "requires_grad_", "sign_", "sub_", "zero_"),
    }
)
CASTS = frozenset({"bfloat16", "clone", "contiguous", "detach", "double", "float", "half", "to"})
#: Calls that take numbers out of gradients, and those under which a DTensor raises or that make others of them.
NUMBERS = frozenset({"abs", "detach", "float", "item", "max", "mean", "norm", "numpy", "pow", "sum", "tolist"})
PLAIN = frozenset({"Histogram", "_foreach_norm", "add_histogram", "allclose", "asarray", "numpy", "tolist"})
SCALES = frozenset({"clamp_", "copy_", "div_", "mul_"})
ADVICE = (
    "use p.grad.to_local(), this rank's shard, which FSDP2 cuts by rows (FSDP1: by elements), so that only sums over "
    "ranks are FSDP1's, or p.grad.full_tensor(). To clip, call "
    "torch.nn.utils.clip_grad_norm_(model.parameters(), limit)"
)
#: torch 2.13: ``mean`` and ``std`` are of the whole gradient, ``norm``, ``max`` and ``sum`` become the rank's part by
#: ``.item()`` or ``float``. FSDP1's are of what its flat shard has of the gradient, which is another part.
OTHER = "{text} is a DTensor under FSDP2 and has other values than FSDP1's flat shard"
FORMATTED = "{text} is a DTensor under FSDP2 and raises an error in formats such as f'{{number:.3f}}'"
UNSYNCED = (
    "{text} reads gradients that no_sync has not reduced: FSDP1 has this rank's whole gradients there, FSDP2 has None"
)
LATER = "read them after the last micro-batch of a step, where both have this rank's shard of the reduced gradients"
LEFT_OUT = "this test excludes DTensors, so it skips every sharded gradient of FSDP2 (FSDP1: plain tensors)"
SENT = "send its shard with .to_local(), as FSDP1 did, or send the values before the model is sharded"


class GradientData(Rule):
    """Arithmetic on parameter.grad by hand.

    FSDP1's gradients are plain tensors, this rank's own part of a flat shard. FSDP2's are DTensors, also under
    `fsdp_compat`. A value computed from them raises when it is combined with a plain tensor, in collectives, in
    `.numpy()`, in histograms, in `torch.allclose` and in formats such as `f"{norm:.3f}"`. Elsewhere the value differs:
    `mean()` covers the whole gradient, and `norm().item()` the rows of this rank. `grad.to_local()` is the plain shard.
    """

    id = "FSDP222"
    name = "gradient-data"
    markers = ((".grad", "parameters()"), ("Optimizer)", "all_reduce"))
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
    total = torch.zeros(())
    for parameter in model.parameters():
        total += parameter.grad.pow(2).sum()
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
    total = torch.zeros(())
    for parameter in model.parameters():
        # TODO(fsdp-migrate FSDP222): parameter.grad is a DTensor under FSDP2, and this arithmetic needs a plain shard
        total += parameter.grad.pow(2).sum()
    dist.all_reduce(total)
    return total.sqrt()
"""

    def visit(self, node: cst.Module, file: File) -> Iterable[Diagnosis]:
        """Every gradient that is read as data, and every parameter that a collective is given."""
        if "fsdp1" not in file.project.flags:
            return
        yield from _own_optimizers(file)
        unsynced = list(_unsynced(file))
        yield from unsynced
        told = {found.node for found in (*unsynced, *HandReducedNorms().visit(file.module, file))}
        read = list(_read(file))
        # What is computed of a gradient is plain once the gradient is, where both are of one function.
        mended = {file.function(place) for place in read if not _is_number(place, file)}
        left_out = set[cst.CSTNode | None]()
        for place in read:
            if _is_number(place, file) and file.function(place) in mended:
                continue
            if place in told or is_summoned(place, file) or is_filled_before_sharding(place, file):
                continue
            # Its elementwise steps are the same on DTensors, and FSDP228 reports the numbers that are not.
            if own_optimizer(place, file) is not None:
                continue
            if not is_aware(place, file):
                yield _diagnosis(place, file)
            elif is_left_out(place, file) and file.function(place) not in left_out:
                left_out.add(file.function(place))
                yield Diagnosis(
                    place, Level.REVIEW, LEFT_OUT, "remove the test if the code should also use sharded gradients"
                )


def _unsynced(file: File) -> Iterator[Diagnosis]:
    """Every gradient that is read, or call that reads some, inside of what accumulates without synchronisation."""
    called = {call.func for call in file.nodes(cst.Call)}
    for node in (*file.nodes(cst.Attribute), *file.nodes(cst.Name)):
        if known_as("unsynced", node, file) and (node in called or last_name(node) == "grad"):
            yield Diagnosis(node, Level.MANUAL, UNSYNCED.format(text=brief(file.code(node))), LATER)


def _diagnosis(place: cst.BaseExpression, file: File) -> Diagnosis:
    """What becomes of the gradient, or parameter, that ``place`` reads."""
    text = file.code(place)
    if (name := _sent_by(place, file)) is not None:
        several = model_of_parameters(place, file) is not None or name == "_sync_module_states"
        one = f"{text} is a DTensor under FSDP2, and {name} takes a plain tensor"
        message = f"{name} takes plain tensors, and sharded parameters are DTensors under FSDP2"
        return Diagnosis(place, Level.MANUAL, message if several else one, ADVICE if _is_number(place, file) else SENT)
    if _is_used_on(file.function(place) or file.module, file):
        message = f"{text} is a DTensor under FSDP2, and this arithmetic needs a plain shard"
        return Diagnosis(place, Level.MANUAL, message, ADVICE)
    if is_formatted(place, file):
        return Diagnosis(place, Level.MANUAL, FORMATTED.format(text=text), ADVICE)
    return Diagnosis(place, Level.REVIEW, OTHER.format(text=text), ADVICE)


def _own_optimizers(file: File) -> Iterator[Diagnosis]:
    """Every collective in a class of an optimizer, which sums up over ranks what are DTensors under FSDP2."""
    for owner in file.nodes(cst.ClassDef):
        if not is_optimizer_class(owner):
            continue
        calls = [call for call in file.inside(owner, cst.Call) if is_collective(call, file)]
        for call in calls if "param_groups" in file.code(owner) else ():
            if is_aware(call, file):
                continue
            yield Diagnosis(
                call,
                Level.MANUAL,
                f"{owner.name.value} reduces its values over ranks: DTensor values are already global, or raise an "
                f"error",
                "compute with p.grad.to_local() and state.to_local(), and keep the states as DTensors so that they "
                "can be saved",
            )


def _sent_by(place: cst.BaseExpression, file: File) -> str | None:
    """The name of the collective that is given ``place`` itself."""
    call = given_to(place, file)
    return last_name(call.func) if call is not None and is_collective(call, file) else None


def _read(file: File) -> Iterator[cst.BaseExpression]:
    """Every gradient of a sharded model's parameters that is read as data, and every such parameter in a collective."""
    for node in file.nodes(cst.Attribute):
        if node.attr.value == "grad" and _is_of_sharded(node.value, file) and _is_data(node, file):
            yield node
        elif node.attr.value in NUMBERS and _is_handed(node.value, file):
            yield node.value
    for call in file.nodes(cst.Call):
        if is_collective(call, file):
            yield from (
                value for value, tensor in sent(call, file) if _is_of_sharded(tensor, file) or _is_number(tensor, file)
            )
            if (together := sent_together(call, file)) is not None:
                yield together


def _is_of_sharded(parameter: cst.BaseExpression, file: File) -> bool:
    return sharded_parameter(parameter, file) is not Certainty.NO


def _is_number(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` may be a tensor that is computed of gradients, in whatever place of the project."""
    return value_of(node, file).number is not Certainty.NO


def _is_handed(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is a name for a gradient that another place of the project reads."""
    return isinstance(node, cst.Name) and sharded_gradient(node, file) is not Certainty.NO


def _is_data(node: cst.Attribute, file: File) -> bool:
    """Whether the number in a gradient goes anywhere: not where it is cleared, scaled or compared with None."""
    if _is_changed_alike(node, file):
        return False
    parent = file.parent(node)
    if isinstance(parent, cst.Attribute):
        return not (parent.attr.value in CASTS and _is_put_back(node, file))
    return not isinstance(
        parent, cst.AssignTarget | cst.Comparison | cst.ComparisonTarget | cst.Del | cst.If | cst.BooleanOperation
    )


def _is_changed_alike(node: cst.Attribute, file: File) -> bool:
    """Whether a gradient, or its data, is asked for no number, or changed in place by what is no plain tensor."""
    current: cst.CSTNode = node
    while True:
        parent = file.parent(current)
        if isinstance(parent, cst.AugAssign):
            return parent.target is current and not _may_be_plain(parent.value, file)
        if not isinstance(parent, cst.Attribute):
            return False
        call = call_of(parent, file)
        if parent.attr.value in HARMLESS:
            return not any(_may_be_plain(one.value, file) for one in (call.args if call is not None else ()))
        if parent.attr.value == "detach" and call is not None:
            current = call
        elif parent.attr.value == "data" and call is None:
            current = parent
        else:
            return False


def _may_be_plain(value: cst.BaseExpression, file: File) -> bool:
    """Whether ``value`` is a plain tensor, or another one for each parameter, as a mask out of a dictionary is.

    What else is not known may be a number, by which gradients are scaled, unless it is called a mask.
    """
    if is_made(value, file):
        return True
    inner = same_values(value)
    if "mask" in last_name(inner).lower():
        each = True
    elif isinstance(inner, cst.Name):
        each = any(binds(loop.target, inner.value) for loop in loops_around(inner, file))
    else:
        each = isinstance(inner, cst.Subscript)
    return each and sharded_parameter(inner, file) is Certainty.NO


def _is_put_back(node: cst.Attribute, file: File) -> bool:
    """Whether a statement as ``p.grad = p.grad.float()`` changes the dtype of ``node`` and nothing else."""
    statement = file.statement(node)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    value = statement.value
    cast = called_on(value)
    return cast is node and file.code(statement.targets[0].target) == file.code(node)


def _is_used_on(whole: cst.CSTNode, file: File) -> bool:
    """Whether a function that reads gradients reduces them, scales others by them, or takes them for plain tensors."""
    names = {last_name(call.func) for call in file.inside(whole, cst.Call)}
    added = any(
        "grad" in file.code(entry.value) and ".item()" not in file.code(entry.value)
        for entry in file.inside(whole, cst.AugAssign)
    )
    return added or bool(names & (COLLECTIVES | PLAIN | SCALES))
