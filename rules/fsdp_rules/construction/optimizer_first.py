"""Rule for optimizers that are built before the model is wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.diagnosis import Diagnosis, InsertAfter, remove
from fsdp_rules.finding import Level
from fsdp_rules.names import FSDP
from fsdp_rules.rule import Rule
from fsdp_rules.source import File, dotted
from fsdp_rules.values import literal_bool, names_in
from fsdp_rules.wrapping import assignments, model_of_parameters, wrapped_module

#: Ends of class names by which optimizers of other libraries are known.
KNOWN = ("adam", "adamw", "adam8bit", "adamw8bit", "adafactor", "adagrad", "lion", "lamb", "muon", "rmsprop", "sgd")

NOT_TRAINED = " (FSDP1 without use_orig_params=True trained nothing this way)"


class OptimizerFirst(Rule):
    """An optimizer that holds the parameters from before wrapping.

    With `use_orig_params=True` FSDP1 keeps the parameter objects, so such an optimizer trains. FSDP2 makes new ones:
    the old optimizer would step without any effect, and without a word. Where nothing between needs the optimizer its
    statement moves behind the sharding; otherwise `fsdp_compat.relink_optimizer` gives it the new parameters.
    """

    id = "FSDP117"
    name = "optimizer-first"
    visits = (cst.Call,)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model = FSDP(model, use_orig_params=True)
    return model, optimizer
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Look for optimizers above a call that wraps a model."""
        if isinstance(node, cst.Call) and file.fsdp1(node.func) == FSDP:
            for early in early_optimizers(node, file):
                yield self._moved(early, file) if early.moves else self._relinked(early, file)

    def _moved(self, early: EarlyOptimizer, file: File) -> Diagnosis:
        return Diagnosis(
            early.built,
            Level.REVIEW,
            f"{early.name} is built after {early.model} is sharded, since FSDP2 makes new parameters{early.note}",
            "nothing between the two lines may depend on the optimizer",
            edits=(remove(early.built), InsertAfter(early.anchor, lambda code: code(early.built))),
        )

    def _relinked(self, early: EarlyOptimizer, file: File) -> Diagnosis:
        name, model = early.name, early.model
        if not file.settings.helpers or isinstance(early.anchor, cst.Return):
            return Diagnosis(
                early.built,
                Level.MANUAL,
                f"{name} holds parameters that {model} no longer has once it is sharded",
                f"build {name} after the sharding",
            )
        relink = file.ref("fsdp_compat.relink_optimizer")
        return Diagnosis(
            early.built,
            Level.REVIEW,
            f"{name} is built before {model} is sharded, so it is given the new parameters afterwards{early.note}",
            f"better, build {name} after the sharding",
            edits=(InsertAfter(early.anchor, lambda code: f"{relink}({name}, {model})"),) if early.speaks else (),
        )


@dataclass(frozen=True)
class EarlyOptimizer:
    """An optimizer built above a wrapping call, for ``model``, whose parameters that call wraps.

    ``moves``: its statement may stand behind ``anchor`` just as well, the statement (or loop) that wraps. Of several
    calls in one loop the first ``speaks``. ``note`` says where FSDP1 trained nothing this way.
    """

    built: cst.Assign
    model: str
    anchor: cst.CSTNode
    moves: bool
    speaks: bool
    note: str

    @property
    def name(self) -> str:
        """The name that the optimizer is assigned to."""
        return dotted(self.built.targets[0].target) or ""


def early_optimizers(call: cst.Call, file: File) -> list[EarlyOptimizer]:
    """The optimizers that hold parameters from before the wrapping ``call``."""
    module = wrapped_module(call)
    function = file.function(call)
    if module is None:
        return []
    scope = file.scope(call)
    line = file.span(call).line
    found: list[EarlyOptimizer] = []
    for built in assignments(file):
        if file.span(built).line >= line:
            break
        value = built.value
        if file.scope(built) != scope or len(built.targets) != 1 or dotted(built.targets[0].target) is None:
            continue
        if not isinstance(value, cst.Call) or not _is_optimizer(value, file):
            continue
        calls = _wrapping_calls(function or file.module, file)
        for model in _models(value, file):
            if not _belongs(module, model, file):
                continue
            wraps = [
                entry for entry in calls if _wraps_part(entry, model, file) and file.span(entry) > file.span(built)
            ]
            anchor = _anchor(call, built, file)
            moves = len(wraps) == 1 and dotted(module) == model and _may_move(built, anchor, file)
            speaks = call is next(entry for entry in wraps if _anchor(entry, built, file) is anchor)
            found.append(EarlyOptimizer(built, model, anchor, moves, speaks, _note(call)))
            break
    return found


def _note(call: cst.Call) -> str:
    for argument in call.args:
        if argument.star == "**":
            return ""
        if argument.keyword is not None and argument.keyword.value == "use_orig_params":
            return "" if literal_bool(argument.value) is not False else NOT_TRAINED
    return NOT_TRAINED


def _wrapping_calls(where: cst.CSTNode, file: File) -> list[cst.Call]:
    found: list[cst.Call] = []

    class Collect(cst.CSTVisitor):
        def visit_Call(self, node: cst.Call) -> None:
            if file.fsdp1(node.func) == FSDP:
                found.append(node)

    where.visit(Collect())
    return found


def _wraps_part(call: cst.Call, model: str, file: File) -> bool:
    module = wrapped_module(call)
    return module is not None and _belongs(module, model, file)


def _belongs(module: cst.BaseExpression, model: str, file: File) -> bool:
    """Whether ``module`` is ``model``, a part of it, or what a loop over it gives."""
    while isinstance(module, cst.Subscript):
        module = module.value
    text = dotted(module)
    if text is None:
        return False
    if text == model or text.startswith(f"{model}."):
        return True
    root = text.partition(".")[0]
    for ancestor in file.ancestors(module):
        if isinstance(ancestor, cst.For) and any(entry.value == root for entry in names_in(ancestor.target)):
            return model in file.code(ancestor.iter)
    return False


def _anchor(call: cst.Call, built: cst.Assign, file: File) -> cst.CSTNode:
    """The statement of ``call``, or the outermost loop around it that the optimizer is not built in."""
    inside = set(file.ancestors(built))
    loops = [entry for entry in file.ancestors(call) if isinstance(entry, cst.For | cst.While) and entry not in inside]
    function = file.function(call)
    return next((entry for entry in reversed(loops) if file.function(entry) is function), file.statement(call))


def _is_optimizer(call: cst.Call, file: File) -> bool:
    full = file.resolved(call.func)
    if full is None or full.startswith(("torch.optim.lr_scheduler.", "torch.optim.swa_utils.")):
        return False
    return full.startswith("torch.optim.") or full.rpartition(".")[2].lower() in KNOWN


def _models(call: cst.Call, file: File) -> list[str]:
    """The models, by dotted name, whose parameters the optimizer built by ``call`` takes."""
    for argument in call.args:
        if argument.keyword is None or argument.keyword.value in ("params", "named_parameters"):
            return list(dict.fromkeys(_read(argument.value, file)))
    return []


def _read(node: cst.BaseExpression, file: File, depth: int = 0) -> Iterator[str]:
    calls: list[cst.Call] = []

    class Collect(cst.CSTVisitor):
        def visit_Call(self, node: cst.Call) -> None:
            calls.append(node)

    node.visit(Collect())
    for call in calls:
        direct = model_of_parameters(call, file)
        texts = [dotted(direct)] if direct is not None else [dotted(argument.value) for argument in call.args]
        yield from (text for text in texts if text is not None)
    if depth > 4:
        return
    for name in names_in(node):
        for binding in file.bindings.get((file.scope(name), name.value), []):
            if binding.value is not None and binding.value is not node:
                yield from _read(binding.value, file, depth + 1)


def _may_move(built: cst.Assign, wrapping: cst.CSTNode, file: File) -> bool:
    """Whether both stand in one block and nothing from the one to the other reads or changes what the optimizer is."""
    block = file.block(built)
    if built not in block or wrapping not in block or not isinstance(wrapping, cst.Assign):
        return False
    between = block[block.index(built) + 1 : block.index(wrapping)]
    name = file.code(built.targets[0].target).rpartition(".")[2]
    for statement in between:
        if any(entry.value == name for entry in names_in(statement)):
            return False
        if not isinstance(statement, cst.Assign | cst.AnnAssign | cst.Expr):
            return False
        if isinstance(statement, cst.Assign) and any(
            _changes(target.target, built.value, file) for target in statement.targets
        ):
            return False
    return not any(entry.value == name for entry in names_in(wrapping))


def _changes(target: cst.BaseExpression, value: cst.BaseExpression, file: File) -> bool:
    """Whether assigning to ``target`` may change what ``value`` means."""
    if isinstance(target, cst.Attribute):
        return file.code(target) in file.code(value)
    read = {entry.value for entry in names_in(value)}
    return any(entry.value in read for entry in names_in(target))
