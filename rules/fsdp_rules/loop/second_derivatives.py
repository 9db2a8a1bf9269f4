"""Rule for gradients that are differentiated again, as gradient penalties and Hessian products do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import libcst as cst

from fsdp_rules.file.callers import default_of
from fsdp_rules.file.expressions import bind, is_repeatable, last_name, literal_bool, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.file.reaching import definitions
from fsdp_rules.model.passes import backwards_after, forwards_before, may_run_between
from fsdp_rules.model.resharding import reshard_loop
from fsdp_rules.model.sharded import sharded, sharded_by_code
from fsdp_rules.model.wrap_given import wrap_given
from fsdp_rules.project.entered import Pass, is_backward
from fsdp_rules.project.flags import BUILDS_GRAPH
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, InsertAfter, InsertBefore
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: Functions of torch that differentiate twice by themselves.
TWICE = frozenset(f"torch.autograd.functional.{name}" for name in ("hessian", "hvp", "vhp"))
#: The parameters of torch.autograd.grad that may be given by position.
GRAD = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
KEEP = "set_reshard_after_backward"
BY_HAND = (
    "call set_reshard_after_backward(False) on the model before this, and (True) and reshard() on every FSDPModule of "
    "it after the backward that uses the result"
)
FSDP1_DID = (
    "compare with a run on one process: if no other forward ran in between, FSDP1 raised an error, or under NO_SHARD "
    "did not reduce these gradients"
)
EXPECT = "expect losses that differ from FSDP1's, and compare with a run on one process"
UNREDUCED = "FSDP1 did not reduce these gradients under NO_SHARD, and FSDP2 averages them"
MAY_BE_UNREDUCED = "if the strategy is NO_SHARD: FSDP1 did not reduce these gradients, and FSDP2 averages them"
WHOLE = f"If the strategy is NO_SHARD, {EXPECT}: it did not reduce these gradients"
INSIDE = "this forward computes gradients itself: FSDP1's gradients are wrong if it shards, and FSDP2's are right"


class Twice(NamedTuple):
    """The ``first`` call that builds a graph, and the calls of which one runs the ``backward`` through it."""

    first: cst.Call
    backward: tuple[cst.Call, ...]


class SecondDerivatives(Rule):
    """Second derivatives: create_graph=True.

    A gradient that is differentiated again (gradient penalties of WGAN-GP and R1, forces of energies, Hessian products)
    needs the parameters that its backward used. FSDP2 frees them after each backward, and the next one fails with
    `setStorage ... out of bounds`. The rewrite keeps the model gathered from the first backward and reshards it after
    the second. Otherwise the next forward would compute with values from before the optimizer's step. This code is
    added to the function that runs both, even if another one builds the graph. If no function runs both, the finding is
    `manual`, and so is one for `loss.backward(create_graph=True)`, which FSDP1 rejects.

    The gradients are those of an unsharded model. FSDP1's are the same if another forward runs between the two. If none
    does, FSDP1 raises. With NO_SHARD it trains each rank on its own gradients (a `manual` finding, with the shim too),
    or not at all with use_orig_params=True. If a model's own forward takes the gradient, as force fields do, FSDP1
    trained on wrong gradients wherever it sharded, which is a `manual` finding too.
    """

    id = "FSDP237"
    name = "second-derivatives"
    what_to_test = "Compare the losses with those of one process that has no FSDP."
    visits = (cst.Module,)
    shim = True
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, batches, optimizer):
    model = FSDP(net)
    for inputs in batches:
        inputs.requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        loss = model(inputs).mean() + slope.square().sum()
        loss.backward()
        optimizer.step()
"""
    after = """
import torch
from torch.distributed.fsdp import FSDPModule, fully_shard

def train(net, batches, optimizer):
    model = fully_shard(net)
    for inputs in batches:
        inputs.requires_grad_()
        model.set_reshard_after_backward(False)
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        loss = model(inputs).mean() + slope.square().sum()
        loss.backward()
        model.set_reshard_after_backward(True)
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                unit.reshard()
        optimizer.step()
"""

    def visit(self, node: cst.Module, file: File) -> Iterable[Diagnosis]:
        """Every call that builds a graph, or leads to one that does, and the backward through that graph."""
        every = self._every(file)
        yield from (
            one for one in every if file.settings.to != "shim" or one.message in (UNREDUCED, MAY_BE_UNREDUCED, INSIDE)
        )

    def _every(self, file: File) -> Iterator[Diagnosis]:
        done: set[cst.Call] = set()
        for call in file.nodes(cst.Call):
            # A run also shows the units inside of the model as models.
            if _is_in_forward(call, file) and not any(
                sharded_by_code(one, file).certainty is not Certainty.NO for one in _models(call, file)
            ):
                yield Diagnosis(call, Level.MANUAL, INSIDE, EXPECT)
                continue
            builds = _builds_graph(call, file)
            if not builds and not _calls_builder(call, file):
                continue
            if builds and is_backward(last_name(call.func)):
                yield from _of_grads(call, file)
                continue
            backward = (call,) if file.resolved(call.func) in TWICE else tuple(backwards_after(call, file))
            if not builds and last_name(call.func) in _repeated(file.module, file):
                backward = backward or (call,)
            models = _models(call, file)
            if not backward:
                left = [model for model in models if builds and not _has_backward_in_callers(call, model, file)]
                yield from _left(call, left, file)
            elif models and done.isdisjoint(backward):
                done.update(backward)
                yield from self._kept(Twice(call, backward), models, file)

    def _kept(self, found: Twice, models: list[cst.BaseExpression], file: File) -> Iterator[Diagnosis]:
        first = file.statement(found.first)
        last = [file.statement(call) for call in found.backward]
        written = any(KEEP in file.code(entry) for entry in file.block(first))
        plain = all(isinstance(entry, cst.BaseSmallStatement) for entry in (first, *last))
        plain = plain and not any(isinstance(entry, cst.Return) for entry in last)
        for model in models:
            apart = may_run_between(found.first, found.backward[0], file)
            strategies = wrap_given(model, file).strategies
            if "NO_SHARD" in strategies and found.backward[0] is not found.first and not apart:
                message = UNREDUCED if strategies == {"NO_SHARD"} else MAY_BE_UNREDUCED
                yield Diagnosis(found.backward[0], Level.MANUAL, message, EXPECT)
            if written:
                continue
            name = file.code(model)
            if not plain or not is_repeatable(model) or sharded(model, file).certainty is not Certainty.YES:
                yield from _left(found.first, [model], file)
                continue
            line = file.span(found.backward[0]).line
            yield Diagnosis(
                found.first,
                Level.REVIEW,
                f"{name} is kept gathered until the backward on line {line}, which differentiates this gradient again",
                FSDP1_DID,
                edits=(_before(first, name), *(_after(entry, model, file) for entry in last)),
            )


def _before(statement: cst.CSTNode, name: str) -> InsertBefore:
    return InsertBefore(statement, lambda code: f"{name}.{KEEP}(False)")


def _after(statement: cst.CSTNode, model: cst.BaseExpression, file: File) -> InsertAfter:
    loop = reshard_loop(statement, model, file)
    return InsertAfter(statement, lambda code: f"{code(model)}.{KEEP}(True)\n{loop(code)}")


def _of_grads(call: cst.Call, file: File) -> Iterator[Diagnosis]:
    """The verdict on ``loss.backward(create_graph=True)``, whose gradients would be in ``.grad``."""
    for model in forwards_before(call, file):
        message = f"FSDP1 raises here, and under FSDP2 the .grad of {file.code(model.func)} has no graph"
        advice = "take these gradients by torch.autograd.grad(..., create_graph=True), and run this tool again"
        yield Diagnosis(call, Level.MANUAL, message, advice)


def _left(call: cst.Call, models: list[cst.BaseExpression], file: File) -> Iterator[Diagnosis]:
    for model in models:
        message = f"this gradient is differentiated again, and needs {file.code(model)} gathered until then"
        may_be_whole = wrap_given(model, file).is_whole() is not Certainty.NO
        yield Diagnosis(call, Level.MANUAL, message, f"{BY_HAND}. {WHOLE}" if may_be_whole else BY_HAND)


def _is_in_forward(call: cst.Call, file: File) -> bool:
    """Whether the forward of a module takes a gradient that may be differentiated again, and something is sharded."""
    function, given = file.function(call), _create_graph(call, file)
    wraps = file.project.values.wraps.values()
    return (
        given is not None
        and literal_bool(file.value(given)) is not False
        and function is not None
        and function.name.value == "forward"
        and not _is_by_weights(call, file)
        and any(one.get("sharding_strategy") != frozenset({"ShardingStrategy.NO_SHARD"}) for one in wraps)
    )


def _is_by_weights(call: cst.Call, file: File) -> bool:
    """Whether the gradient is with respect to what is made of the module's own weights, and passes through no unit."""
    named = [name for argument in call.args[1:2] for name in names_in(argument)]
    bound = [one for name in named for one in file.bindings.found.get((file.scope(name), name.value), [])]
    made = [*named, *(name for one in bound for name in names_in(one.statement))]
    return any(one.value == "self" for one in made)


def _builds_graph(call: cst.Call, file: File) -> bool:
    given = _create_graph(call, file)
    value = _literal(given, file) if given is not None else False
    # What is kept gathered for a graph that is not built computes the same.
    unsure = value is None and not is_backward(last_name(call.func))
    return value is True or unsure or file.resolved(call.func) in TWICE


def _literal(given: cst.BaseExpression, file: File) -> bool | None:
    """The literal that ``given`` is, also as the default of a parameter that no call gives."""
    bound = definitions(given, file) if isinstance(given, cst.Name) else None
    parameter = next(iter(bound), None) if bound is not None and len(bound) == 1 else None
    if isinstance(given, cst.Name) and isinstance(parameter, cst.Param):
        default = default_of(given, parameter, file)
        return literal_bool(default) if default is not None else None
    return literal_bool(file.value(given))


def _create_graph(call: cst.Call, file: File) -> cst.BaseExpression | None:
    """What ``call`` is given for ``create_graph``."""
    by_place = bind(call, GRAD) if file.resolved(call.func) == "torch.autograd.grad" else None
    named = {one.keyword.value: one.value for one in call.args if one.keyword is not None}
    return (by_place or bind(call, ()) or named).get("create_graph")


def _calls_builder(call: cst.Call, file: File) -> bool:
    """Whether ``call`` gives what can be differentiated again, and runs no backward itself."""
    text = dotted(call.func)
    if text is None or last_name(call.func) not in _builders(file.module, file):
        return False
    return Pass.BACKWARD not in file.project.entered.leaves(file.path, file.scope(call), text)


@once
def _builders(module: cst.Module, file: File) -> frozenset[str]:
    """The last names of the functions that build a graph, or call one that does and run no backward themselves."""
    names = {flag.removeprefix(BUILDS_GRAPH) for flag in file.project.flags if flag.startswith(BUILDS_GRAPH)}
    return frozenset(names | {name for name, runs in _callers_of(names, file) if not runs})


@once
def _repeated(module: cst.Module, file: File) -> frozenset[str]:
    """The last names of the functions that build more than one graph, of which one may go through another."""
    built = Counter(name for name, runs in _callers_of(_builders(module, file), file) if not runs)
    return frozenset(name for name, times in built.items() if times > 1)


def _callers_of(names: Iterable[str], file: File) -> Iterator[tuple[str, bool]]:
    """What calls ``names``, by last names, and whether it runs a backward; of what runs none the callers as well."""
    entered = file.project.entered
    pending, known = [*names], set(names)
    while pending:
        for site, _ in entered.callers.get(pending.pop(), ()):
            name = site[1].rpartition(".")[2]
            runs = any(is_backward(step.callee.rpartition(".")[2]) for step in entered.steps[site])
            yield name, runs
            if not runs and name not in known:
                known.add(name)
                pending.append(name)


def _has_backward_in_callers(call: cst.Call, model: cst.BaseExpression, file: File) -> bool:
    """Whether the callers of the function around ``call`` have a name for its ``model``, as they have the backward."""
    function = file.function(call)
    if function is None or not any(runs for _, runs in _callers_of([function.name.value], file)):
        return False
    callers = file.project.entered.callers[function.name.value]
    root = file.code(model).partition(".")[0]
    if root != "self" and root in {entry.name.value for entry in file.inside(function.params, cst.Param)}:
        return True
    called = {file.project.entered.steps[site][place].callee for site, place in callers}
    return {site[0] for site, _ in callers} == {file.path} and called == {f"self.{function.name.value}"}


def _models(call: cst.Call, file: File) -> list[cst.BaseExpression]:
    """The sharded models that ``call`` is given, or else those that run above it, or in the method that it calls."""
    given = [argument.value for argument in call.args]
    found = [one for one in given if sharded(one, file).certainty is not Certainty.NO]
    found = found or [one.func for one in forwards_before(call, file)]
    if not found and file.code(call.func).startswith("self."):
        inside = (one for one in file.nodes(cst.Call) if _builds_graph(one, file))
        methods = [one for one in inside if file.scope(one).rpartition(".")[2] == last_name(call.func)]
        ran = (model for one in methods for model in forwards_before(one, file))
        found = [one.func for one in ran if file.code(one.func).startswith("self.")]
    return list({file.code(one): one for one in found}.values())
