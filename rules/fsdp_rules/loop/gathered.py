"""Rule for what reaches a model's parameters while FSDP2 still has them gathered."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

import libcst as cst

from fsdp_rules.file.expressions import brief, is_repeatable, names_in
from fsdp_rules.file.file import File
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.loop._own_optimizer import optimizer_of
from fsdp_rules.loop._parameter_writes import held_of, is_given, whole_of, writes, zips
from fsdp_rules.model.between import is_freed
from fsdp_rules.model.flowing import known_as, outlasts_backwards
from fsdp_rules.model.guards import Guard, guard_of, is_under_another_wrapper
from fsdp_rules.model.kept_clearing import kept_clearing
from fsdp_rules.model.parameter_reads import parameter_reads
from fsdp_rules.model.passes import Pass, awaits_backward, is_given_loss, last_passes, may_run_between
from fsdp_rules.model.resharding import reshard_before, reshard_loop
from fsdp_rules.model.root_parameters import runs_without_graph
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.wrap_given import wrap_given
from fsdp_rules.model.wrapping import is_comprehended
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, InsertBefore, Replace, remove
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

ADVICE = (
    "clear the gradients with the optimizer's zero_grad(), or call reshard() on every FSDPModule of the model first"
)

NAME_IT = "assign the model to a name first, and run this tool again"


class GatheredParameters(Rule):
    """model.parameters() and model.zero_grad() after a forward without backward.

    After a forward, FSDP2 keeps the root gathered (under SHARD_GRAD_OP every unit), and `model.parameters()` then
    returns the gathered copies. `model.zero_grad()` does not clear the gradients of the sharded parameters, an
    optimizer built there trains nothing, and an average copies tensors that are about to be freed. FSDP1 has one set of
    parameters. This tool follows a function to its callers in all files to find what ran before. The optimizer's own
    `zero_grad()` always reaches the sharded parameters. If the optimizer is not known, the units are resharded first,
    which has no effect on units that are already sharded. Between a forward and its backward, gradients are cleared
    before the forward instead, so nothing is gathered twice. Reads that give the same result on gathered parameters
    (devices, dtypes, names, shapes, counts) are unchanged. A function that gets the loss as well as the parameters is
    assumed to run the backward itself.

    CPU time of an evaluation and a step, relative to one that clears nothing: 0.99 times with the optimizer's
    zero_grad(), 1.04 times with reshard() and one more all-gather, 1.04 times with a root that reshards and two more
    (12 rounds on two gloo ranks of a busy CPU, quartiles 0.93 to 1.10; benchmarks/gathered_forms.py).
    """

    id = "FSDP220"
    name = "gathered-parameters"
    markers = (".zero_grad(", ".parameters()")
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

    def visit(self, node: cst.Module, file: File) -> Iterable[Diagnosis]:
        """Every place that reads parameters where a forward may have been the last pass."""
        if "fsdp1" not in file.project.flags:
            return
        resharded: dict[tuple[cst.CSTNode, str], cst.CSTNode] = {}
        for place, part, clears in parameter_reads(file):
            model = whole_of(part, clears, file)
            if _is_of_fsdp2(place, file):
                continue
            if not _is_gathered(place, model, clears, file):
                continue
            # Where FSDP1 clears nothing, what is gathered is not cleared either: FSDP238 says so.
            if clears and kept_clearing(place, model, file) is not None:
                continue
            forward = awaits_backward(place, file)
            if not clears and _needs_no_shards(place, model, forward, file):
                continue
            whole = clears and isinstance(place, cst.Call) and model is part
            optimizer = optimizer_of(model, place, file) if whole else None
            if optimizer is not None and isinstance(place, cst.Call):
                yield self._by_optimizer(place, model, optimizer, file)
                continue
            if clears and forward is not None and (moved := _moved_above(place, forward, model, file)) is not None:
                yield moved
                continue
            own = isinstance(place, cst.Call) and known_as("own", place.func, file)
            if own and not may_reshard_before(place, model, file):
                # What a function of the tree does with its model is judged in it.
                continue
            statement = file.statement(place)
            block = file.parent(file.parent(statement) or statement)
            if block is not None:
                before = resharded.get((block, file.code(model)))
                if before is not None and not clears and not may_run_between(before, place, file):
                    continue
                resharded[block, file.code(model)] = place
            yield self._resharded(place, model, forward, file)

    def _by_optimizer(self, call: cst.Call, model: cst.BaseExpression, optimizer: str, file: File) -> Diagnosis:
        return Diagnosis(
            call,
            Level.SAFE,
            f"after a forward, {file.code(model)}.zero_grad() would only reach gathered parameters",
            edits=(Replace(call, lambda code: f"{optimizer}.zero_grad({', '.join(map(code, call.args))})"),),
        )

    def _resharded(
        self, place: cst.CSTNode, model: cst.BaseExpression, forward: cst.Call | None, file: File
    ) -> Diagnosis:
        message = f"after a forward, FSDP2 still holds gathered parameters: {file.code(model)} is resharded first"
        statement = file.statement(place)
        given = is_given(model, file)
        if given or any(is_comprehended(model, one.value, file) for one in names_in(model)):
            ran = given and Pass.FORWARD in last_passes(place, file, given=model)
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
        edits = (reshard_before(statement, model, file),)
        if forward is not None:
            message = f"{file.code(model)} is resharded first, and its backward gathers it a second time (FSDP1: once)"
            advice = f"to avoid the extra gather, do this before the forward on line {file.span(forward).line}"
            return Diagnosis(place, Level.REVIEW, message, advice, edits=edits)
        return Diagnosis(place, Level.SAFE, message, edits=edits)


def _needs_no_shards(place: cst.CSTNode, model: cst.BaseExpression, forward: cst.Call | None, file: File) -> bool:
    """Whether ``place``, which clears nothing, may have gathered parameters, so that no backward gathers them again.

    What is given the loss as well runs the backward before it does anything with them. Where FSDP1 keeps all units
    gathered until their backward, they are whole there, too. One parameter by its name is whole, or in shards, under
    both: the root is gathered up to its backward, and a unit is not; with use_orig_params FSDP1 shows its shard.
    """
    given, is_named = wrap_given(model, file), isinstance(place, cst.Attribute)
    if forward is None and not (is_named and given.keeps_originals() is Certainty.NO):
        return isinstance(place, cst.Call) and is_given_loss(place, file)
    return (is_named or given.stays_gathered() is Certainty.YES) and not writes(place, model, file)


def _moved_above(place: cst.CSTNode, forward: cst.Call, model: cst.BaseExpression, file: File) -> Diagnosis | None:
    """The verdict where gradients are cleared above ``forward`` as well as below it; None where they are not."""
    statement, above = file.statement(place), file.statement(forward)
    plain = isinstance(statement, cst.Expr) and statement.value is place and isinstance(above, cst.BaseSmallStatement)
    if not plain or statement not in file.block(above) or not is_repeatable(model):
        return None
    sharded_there = last_passes(above, file) <= {Pass.BACKWARD, Pass.RESHARD}
    first = "" if sharded_there else f"{reshard_loop(above, model, file)(file.code)}\n"
    message = (
        f"after a forward, this would only reach gathered parameters: it is moved above line {file.span(above).line}"
    )
    edits = (remove(statement), InsertBefore(above, lambda code: f"{first}{code(place)}"))
    return Diagnosis(place, Level.SAFE, message, edits=edits)


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


def _is_gathered(place: cst.CSTNode, model: cst.BaseExpression, clears: bool, file: File) -> bool:
    held = held_of(model, file)
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
    changes = clears or zips(place) or (isinstance(place, cst.For) and writes(place, model, file))
    # No backward frees what ran without a graph.
    if changes and not clears and runs_without_graph(model, file):
        return True
    return may_be_gathered(place, model, changes, file)


def changes_gathered(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether a forward may have left gathered what ``place`` changes of ``model``."""
    held = held_of(model, file)
    if not _is_gathered(place, model, False, file):
        return False
    return runs_without_graph(model, file) or Pass.FORWARD in last_passes(place, file, made_here=held.is_made_here)


def may_be_gathered(place: cst.CSTNode, model: cst.BaseExpression, changes: bool, file: File) -> bool:
    """Whether a pass before ``place`` may leave parameters of ``model`` gathered, of which a change would be lost."""
    given = model if is_given(model, file) else None
    passes = last_passes(place, file, made_here=held_of(model, file).is_made_here, given=given)
    if Pass.BACKWARD in passes and outlasts_backwards(model, file) and not is_freed(model, place, file):
        return True
    return not passes <= {Pass.BACKWARD, Pass.RESHARD} if changes else Pass.FORWARD in passes
