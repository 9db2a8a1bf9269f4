"""Optimizers that hold the parameters that a model had before it was wrapped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import is_none, literal_bool, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.arms import excludes
from fsdp_rules.model.flowing import is_no_optimizer, known_as
from fsdp_rules.model.wrapping import assignments, is_comprehended, may_wrap, model_of_parameters, wrapped_module
from fsdp_rules.project.optimizers import BUILDER, holds_optimizer, is_optimizer

#: What wraps a model where it is called.
WRAPPERS = (FSDP, "wrap")
#: The rule that rewrites such a call.
CALL = "FSDP101"
#: Ends of the names of settings, which functions are given beside a model.
SETTINGS = re.compile(r"(args|cfg|conf|config|configuration|hparams|options|opts|settings)$", re.IGNORECASE)
NOT_TRAINED = " (FSDP1 without use_orig_params=True trained nothing this way)"


@dataclass(frozen=True)
class EarlyOptimizer:
    """An optimizer built above a wrapping call, for ``model``, whose parameters that call wraps.

    ``moves``: its statement may stand behind ``anchor`` just as well, the statement (or loop) that wraps. Of several
    calls in one loop the first ``speaks``. ``elsewhere``: the call is one of a function of the project that wraps.
    ``note`` says where FSDP1 trained nothing this way.
    """

    built: cst.Assign
    model: str
    anchor: cst.CSTNode
    moves: bool
    speaks: bool
    elsewhere: bool
    note: str

    @property
    def name(self) -> str:
        """The name that the optimizer is assigned to."""
        return dotted(self.built.targets[0].target) or ""


@once
def early_optimizers(call: cst.Call, file: File) -> list[EarlyOptimizer]:
    """The optimizers that hold parameters from before the wrapping ``call``."""
    if not wraps(call, file):
        return []
    scope, place = file.scope(call), file.span(call)
    calls = wrapping_calls(file.function(call) or file.module, file)
    found: list[EarlyOptimizer] = []
    for built, parameters in _built(file.module, file):
        if file.span(built).line >= place.line:
            break
        if file.scope(built) != scope or excludes(built, call, file):
            continue
        models = _models(parameters, file)
        if _passes_on(call, models, built, calls, file):
            continue
        for model, is_owner in models.items():
            whole = is_wrapped_by(call, model, file)
            if not wraps_part(call, model, file) and not (whole and is_owner):
                continue
            after = (one for one in calls if file.span(one) > file.span(built))
            later = [one for one in after if wraps_part(one, model, file) or is_wrapped_by(one, model, file)]
            anchor = _anchor(call, built, file)
            found.append(
                EarlyOptimizer(
                    built,
                    model,
                    anchor,
                    moves=len(later) == 1
                    and whole
                    and not _is_held_by_name(parameters, model, file)
                    and may_move(built, anchor, file),
                    speaks=_speaks(call, anchor, [(one, _anchor(one, built, file)) for one in later], file),
                    elsewhere=file.fsdp1(call.func) not in WRAPPERS,
                    note=untrained(call) if file.fsdp1(call.func) == FSDP else "",
                )
            )
            break
    return found


@once
def _models(parameters: cst.BaseExpression, file: File) -> dict[str, bool]:
    """The models that ``parameters`` may be of, each with whether its own ``parameters()`` are read there."""
    owners = {*models_read(parameters, file, owners=True)}
    return {one: one in owners for one in models_read(parameters, file) if not SETTINGS.search(one)}


@once
def _built(module: cst.Module, file: File) -> list[tuple[cst.Assign, cst.BaseExpression]]:
    """The assignments of ``module`` that give one name to an optimizer, each with what that is given to train."""
    return [
        (built, parameters)
        for built in assignments(file)
        if isinstance(built.value, cst.Call)
        and len(built.targets) == 1
        and dotted(built.targets[0].target) is not None
        and (parameters := parameters_of(built.value, file)) is not None
    ]


def given_optimizers(call: cst.Call, file: File) -> list[cst.Param]:
    """The optimizers that a function is given together with the model that it wraps, where FSDP1 kept them valid."""
    function = file.function(call)
    if function is None or file.fsdp1(call.func) != FSDP or untrained(call):
        return []
    parameters = [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
    root = (dotted(wrapped_module(call) or call) or "").partition(".")[0]
    if root not in {parameter.name.value for parameter in parameters}:
        return []
    others = {dotted(entry.func) for entry in file.inside(function, cst.Call)}
    named = [entry for entry in parameters if holds_optimizer(entry.name.value)]
    others |= {one.value for one in file.inside(function.body, cst.Name) if is_no_optimizer(one, file)}
    return [entry for entry in named if entry.name.value not in others]


def _speaks(call: cst.Call, anchor: cst.CSTNode, wraps: list[tuple[cst.Call, cst.CSTNode]], file: File) -> bool:
    """Whether ``call`` is the first one at its anchor, and its anchor the last one of its block."""
    block = file.block(anchor)
    return call is next(one for one, its in wraps if its is anchor) and anchor is next(
        its for _, its in reversed(wraps) if file.block(its) is block
    )


def _passes_on(call: cst.Call, models: Iterable[str], built: cst.Assign, calls: list[cst.Call], file: File) -> bool:
    """Whether ``call``, of a function of the project, gets a model that was wrapped above the optimizer already."""
    return file.fsdp1(call.func) not in WRAPPERS and any(
        file.span(one) < file.span(built) and not {dotted(module) for module in _modules(one, file)}.isdisjoint(models)
        for one in calls
    )


def untrained(call: cst.Call) -> str:
    """What to add where FSDP1 would have trained nothing with an optimizer that was built before ``call``, else ""."""
    for argument in call.args:
        if argument.star == "**":
            return ""
        if argument.keyword is not None and argument.keyword.value == "use_orig_params":
            return "" if literal_bool(argument.value) is not False else NOT_TRAINED
    return NOT_TRAINED


@once
def wraps(call: cst.Call, file: File) -> bool:
    """Whether ``call`` wraps a model: itself, or as a function of the project that returns what it wrapped.

    A call of FSDP1's class that is left as it is keeps the parameters that an optimizer has.
    """
    if file.fsdp1(call.func) in WRAPPERS:
        is_silenced = not file.settings.enabled(CALL) or file.suppressions.ignored(CALL, call)
        return not is_silenced and file.suppressions.gated(call) is None
    return isinstance(file.parent(call), cst.Assign) and bool(call.args) and may_wrap(call, file)


@once
def wrapping_calls(where: cst.CSTNode, file: File) -> list[cst.Call]:
    return [call for call in file.inside(where, cst.Call) if wraps(call, file)]


def _modules(call: cst.Call, file: File) -> list[cst.BaseExpression]:
    """What a wrapping call wraps, or may wrap."""
    if file.fsdp1(call.func) not in WRAPPERS:
        return [argument.value for argument in call.args]
    module = wrapped_module(call)
    return [module] if module is not None else []


def wraps_part(call: cst.Call, model: str, file: File) -> bool:
    return any(_belongs(module, model, file) for module in _modules(call, file))


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


def is_wrapped_by(call: cst.Call, model: str, file: File) -> bool:
    """Whether ``call`` wraps ``model`` or what it is a part of, and no part of it."""
    return any(f"{model}.".startswith(f"{dotted(module)}.") for module in _modules(call, file))


def _anchor(call: cst.Call, built: cst.Assign, file: File) -> cst.CSTNode:
    return anchor_of(call, built, file.code(built.targets[0].target), file)


def anchor_of(call: cst.Call, built: cst.CSTNode, name: str, file: File) -> cst.CSTNode:
    """The statement of ``call``, or the outermost loop around it that neither has ``built`` in it nor names ``name``.

    A loop that names it trains with it, or unpacks it together with its model, and behind the loop is too late.
    """
    inside = set(file.ancestors(built))
    loops = [
        entry
        for entry in file.ancestors(call)
        if isinstance(entry, cst.For | cst.While)
        and entry not in inside
        and not any(dotted(use) == name for kind in (cst.Name, cst.Attribute) for use in file.inside(entry, kind))
    ]
    function = file.function(call)
    return next((entry for entry in reversed(loops) if file.function(entry) is function), file.statement(call))


def parameters_of(call: cst.Call, file: File) -> cst.BaseExpression | None:
    """What an optimizer is given to train; None where ``call`` builds no optimizer.

    That is the call itself where a function or method of the project builds it.
    """
    if BUILDER.fullmatch((dotted(call.func) or "").rpartition(".")[2]):
        return call
    if not is_optimizer(file.resolved(call.func) or ""):
        return None
    for argument in call.args:
        if argument.keyword is None or argument.keyword.value in ("params", "named_parameters"):
            return argument.value
    return None


def models_read(node: cst.BaseExpression, file: File, depth: int = 0, *, owners: bool = False) -> Iterator[str]:
    """The models whose parameters ``node`` or a name in it gives; ``owners``: those whose ``parameters()`` are read."""
    for call in file.inside(node, cst.Call):
        direct = model_of_parameters(call, file)
        if direct is None and owners:
            continue
        given = (one.value for one in call.args if not (is_none(one.value) or known_as("other", one.value, file)))
        texts = [dotted(direct)] if direct is not None else [dotted(value) for value in given]
        if direct is None and isinstance(call.func, cst.Attribute):
            texts.append(dotted(call.func.value))
        yield from (text for text in texts if text is not None and text != "self")
    if depth < 5:
        for _, value in _assigned(node, file):
            yield from models_read(value, file, depth + 1, owners=owners)


def _assigned(node: cst.BaseExpression, file: File) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Each name that ``node`` reads, with each value that its scope assigns to it above."""
    for name in names_in(node):
        bound = file.bindings.found.get((file.scope(name), name.value), [])
        for binding in () if is_comprehended(name, name.value, file) else bound:
            value = binding.value
            # What a name gets further down is nothing that this reads.
            if value is not None and value is not node and file.span(value).line <= file.span(name).line:
                yield name.value, value


def _is_held_by_name(parameters: cst.BaseExpression, model: str, file: File) -> bool:
    """Whether the parameters come through a name, which holds those from before wherever the optimizer is built."""
    root = model.partition(".")[0]
    return any(name != root and model in models_read(value, file) for name, value in _assigned(parameters, file))


def may_move(built: cst.Assign, wrapping: cst.CSTNode, file: File) -> bool:
    """Whether both stand in one block and nothing from the one to the other reads or changes what the optimizer is."""
    block = file.block(built)
    first, last = file.layout.number(built), file.layout.number(wrapping)
    if first is None or last is None or block is not file.block(wrapping) or not isinstance(wrapping, cst.Assign):
        return False
    between = block[first + 1 : last]
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
