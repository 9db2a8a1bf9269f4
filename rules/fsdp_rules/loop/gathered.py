"""Rule for what reaches a model's parameters while FSDP2 still has them gathered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

import libcst as cst

from fsdp_rules.file.expressions import brief, is_repeatable, last_name, names_in
from fsdp_rules.file.file import File
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.loop._own_optimizer import optimizer_of
from fsdp_rules.loop._parameter_reads import changes_in_place, parameter_reads
from fsdp_rules.model.containing import containing
from fsdp_rules.model.given_by_call import FOREIGN, is_given_by_call
from fsdp_rules.model.guards import Guard, guard_of, is_under_another_wrapper
from fsdp_rules.model.passes import Pass, last_passes, may_run_between
from fsdp_rules.model.sharded import Sharded, sharded
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.wrapping import model_of_parameters
from fsdp_rules.project.optimizers import OPTIMIZER
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit, InsertBefore, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

ADVICE = (
    "clear the gradients with the optimizer's zero_grad(), or call reshard() on every FSDPModule of the model first"
)

NAME_IT = "assign the model to a name first, and run this tool again"


class GatheredParameters(Rule):
    """model.parameters() and model.zero_grad() after a forward without backward.

    After a forward FSDP2 keeps the root gathered (under SHARD_GRAD_OP every unit), and `model.parameters()` then
    gives the gathered copies: `model.zero_grad()` leaves the gradients of the sharded parameters where they are, an
    optimizer built there trains nothing, and an average copies what is about to be freed. FSDP1 has one set of
    parameters. What ran before a function is followed to its callers, in all files. The optimizer's own `zero_grad()`
    always reaches the sharded parameters; where it is not known, the units are resharded first, which does nothing
    where they are sharded already.

    An evaluation and a step take 0.99 times the CPU time by the optimizer's zero_grad(), 1.04 by reshard() and
    one all-gather more, 1.04 by a root that reshards and two more (12 rounds on two gloo ranks of a busy CPU,
    quartiles 0.93 to 1.10; benchmarks/gathered_forms.py).
    """

    id = "FSDP220"
    name = "gathered-parameters"
    markers = (".zero_grad(", ".parameters()")
    words = (r"\.(named_)?parameters\(", r"\.(weight|bias)\b")
    what_to_test = "Evaluate between two steps, and compare the losses after it with those of the old code."
    visits = (cst.Module,)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, batches):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        loss = model(batch).sum()
        model.zero_grad()
        loss.backward()
        optimizer.step()
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def train(net, batches):
    model = fully_shard(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Every place that reads parameters where a forward may have been the last pass."""
        if "fsdp1" not in file.project.flags:
            return
        resharded: dict[tuple[cst.CSTNode, str], cst.CSTNode] = {}
        for place, part, clears in parameter_reads(file):
            model = _whole(part, clears, file)
            if _only_counts(place) or _only_names(place, file) or _is_of_fsdp2(place, file):
                continue
            if not _is_gathered(place, model, clears, file):
                continue
            whole = clears and isinstance(place, cst.Call) and model is part
            optimizer = optimizer_of(model, place, file) if whole else None
            if optimizer is not None and isinstance(place, cst.Call):
                yield self._by_optimizer(place, model, optimizer, file)
                continue
            statement = file.statement(place)
            block = file.parent(file.parent(statement) or statement)
            if block is not None:
                before = resharded.get((block, file.code(model)))
                if before is not None and not clears and not may_run_between(before, place, file):
                    continue
                resharded[block, file.code(model)] = place
            yield self._resharded(place, model, file)

    def _by_optimizer(self, call: cst.Call, model: cst.BaseExpression, optimizer: str, file: File) -> Diagnosis:
        return Diagnosis(
            call,
            Level.SAFE,
            f"after a forward, {file.code(model)}.zero_grad() would only reach gathered parameters",
            edits=(Replace(call, lambda code: f"{optimizer}.zero_grad({', '.join(map(code, call.args))})"),),
        )

    def _resharded(self, place: cst.CSTNode, model: cst.BaseExpression, file: File) -> Diagnosis:
        message = f"after a forward, FSDP2 still holds gathered parameters: {file.code(model)} is resharded first"
        statement = file.statement(place)
        if _is_given(model, file):
            ran = Pass.FORWARD in last_passes(place, file, given=model)
            return Diagnosis(
                place,
                Level.MANUAL if ran else Level.REVIEW,
                f"if {brief(file.code(model))} is sharded: after a forward, this only reaches gathered parameters",
                NAME_IT,
            )
        if not may_reshard_before(place, model, file):
            return Diagnosis(
                place,
                Level.MANUAL,
                "after a forward, this only reaches gathered parameters",
                ADVICE,
            )
        # FSDP1 keeps its root gathered over such a forward, and computes with it once more before it sees the change.
        edits = (reshard_before(statement, model, file),)
        if not _writes(place, model, file):
            return Diagnosis(place, Level.SAFE, message, edits=edits)
        message = f"{file.code(model)} is resharded first: its root reads this change at once (FSDP1: one step later)"
        advice = "if the losses after an evaluation have to be FSDP1's, change the parameters before it"
        return Diagnosis(place, Level.REVIEW, message, advice, edits=edits)


def _is_of_fsdp2(place: cst.CSTNode, file: File) -> bool:
    """Whether the statement around ``place`` reads parameters as DTensors, which a run of this tool has written."""
    return any(one.attr.value == "full_tensor" for one in file.inside(file.statement(place), cst.Attribute))


def may_reshard_before(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether the statement around ``place`` can have another in front of it, which evaluates ``model`` again."""
    statement = file.statement(place)
    return (
        is_repeatable(model)
        and isinstance(statement, cst.BaseSmallStatement | cst.For)
        and not any(
            isinstance(entry, cst.Lambda)
            for entry in takewhile(lambda one: one is not statement, file.ancestors(place))
        )
    )


def reshard_before(statement: cst.CSTNode, model: cst.BaseExpression, file: File) -> Edit:
    """The edit that reshards every unit of ``model`` in front of ``statement``."""
    module = file.ref("torch.distributed.fsdp.FSDPModule")
    unit = file.fresh(statement, "unit", "fsdp_unit")
    return InsertBefore(
        statement,
        lambda code: (
            f"for {unit} in {code(model)}.modules():\n    if isinstance({unit}, {module}):\n        {unit}.reshard()"
        ),
    )


def _whole(part: cst.BaseExpression, clears: bool, file: File) -> cst.BaseExpression:
    """The sharded model that ``part`` is a part of, ``part`` itself where none is known."""
    for node in (part, *containing(part, file)):
        held = _held(node, file).certainty
        if held is not Certainty.NO and not (clears and _is_itself(node, held)):
            return node
        # An optimizer that an object has beside its model is none of the model's parts.
        if clears and (FOREIGN.search(last_name(node)) or OPTIMIZER.search(last_name(node))):
            return part
    return part


def _is_itself(node: cst.BaseExpression, held: Certainty) -> bool:
    """Whether ``node`` is an object that is a model by the name of its method alone."""
    return isinstance(node, cst.Name) and node.value in ("self", "cls") and held is not Certainty.YES


def _held(model: cst.BaseExpression, file: File) -> Sharded:
    """Whether ``model`` is a sharded one, or may be, since it is what a function gives."""
    found = sharded(model, file)
    return replace(found, certainty=Certainty.MAYBE) if _is_given(model, file) else found


def _is_given(model: cst.BaseExpression, file: File) -> bool:
    found = sharded(model, file)
    return found.certainty is Certainty.NO and not found.is_excluded and is_given_by_call(model, file)


def _is_gathered(place: cst.CSTNode, model: cst.BaseExpression, clears: bool, file: File) -> bool:
    held = _held(model, file)
    if (
        held.certainty is Certainty.NO
        or held.is_excluded
        or is_summoned(place, file)
        or is_under_another_wrapper(place, file)
        or is_not_sharded_yet(place, model, file)
    ):
        return False
    if guard_of(place, file.code(model), file) is Guard.OTHER:
        return False
    changes = clears or _zips(place) or (isinstance(place, cst.For) and _writes(place, model, file))
    return may_be_gathered(place, held, changes, file, model if _is_given(model, file) else None)


def may_be_gathered(
    place: cst.CSTNode, held: Sharded, changes: bool, file: File, given: cst.BaseExpression | None = None
) -> bool:
    """Whether a pass before ``place`` may leave parameters gathered, of which a change would be lost.

    ``given`` is the model, where a call gives it.
    """
    passes = last_passes(place, file, made_here=held.is_made_here, given=given)
    return not passes <= {Pass.BACKWARD, Pass.RESHARD} if changes else Pass.FORWARD in passes


def _only_counts(place: cst.CSTNode) -> bool:
    """``sum(p.numel() for p in model.parameters())``: gathered and sharded parameters say the same."""
    given = place.args[0].value if isinstance(place, cst.Call) and len(place.args) == 1 else None
    elt = given.elt if isinstance(given, cst.GeneratorExp | cst.ListComp) else None
    func = elt.func if isinstance(elt, cst.Call) and not elt.args else None
    return isinstance(func, cst.Attribute) and func.attr.value in ("numel", "nelement", "dim", "size")


def _only_names(place: cst.CSTNode, file: File) -> bool:
    """``for name, _ in model.named_parameters()``: gathered and sharded parameters have the same names."""
    loop = place if isinstance(place, cst.For) else file.parent(place)
    target = loop.target if isinstance(loop, cst.For | cst.CompFor) else None
    value = target.elements[-1].value if isinstance(target, cst.Tuple) and len(target.elements) == 2 else None
    return isinstance(value, cst.Name) and value.value == "_"


def _writes(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether ``place`` is a loop that changes in place the parameters that it runs over, or leads to such changes."""
    loop = place if isinstance(place, cst.For) else None
    if isinstance(place, cst.Attribute):
        return place.attr.value != "grad" and changes_in_place(place, file)
    if loop is None and changes_in_place(place, file):
        return True
    target = None if loop is None else _own_target(loop, model, file)
    names = set() if target is None else {entry.value for entry in names_in(target)}
    whole = file.function(place) or file.statement(place) if loop is None else loop.body
    for call in file.inside(whole, cst.Call):
        func = call.func
        if not isinstance(func, cst.Attribute) or not func.attr.value.endswith("_") or func.attr.value[0] == "_":
            continue
        changed = func.value
        is_data = isinstance(changed, cst.Attribute) and changed.attr.value == "data"
        if isinstance(changed, cst.Attribute) and is_data:
            changed = changed.value
        if func.attr.value == "requires_grad_":
            continue
        if loop is not None and isinstance(changed, cst.Name) and changed.value in names:
            return True
        if loop is None and (is_data or isinstance(changed, cst.Subscript)):
            return True
    return False


def _own_target(loop: cst.For, model: cst.BaseExpression, file: File) -> cst.CSTNode:
    """What of the target of ``loop`` runs over the model's parameters: of ``zip(saved, model.parameters())`` half."""
    target, call = loop.target, loop.iter
    if _zips(loop) and isinstance(call, cst.Call) and isinstance(target, cst.Tuple):
        found = [model_of_parameters(argument.value, file) for argument in call.args]
        mine = [one is not None and file.code(_whole(one, False, file)) == file.code(model) for one in found]
        if len(mine) == len(target.elements) and mine.count(True) == 1:
            return target.elements[mine.index(True)].value
    return target


def _zips(place: cst.CSTNode) -> bool:
    """Whether ``place`` goes through the parameters of two models, as averages and updates of teachers do."""
    return isinstance(place, cst.For) and (
        isinstance(place.iter, cst.Call) and isinstance(place.iter.func, cst.Name) and place.iter.func.value == "zip"
    )
