"""Parameters that a program collects before it wraps the model, and builds an optimizer of afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.early_optimizers import (
    WRAPPERS,
    anchor_of,
    is_wrapped_by,
    may_move,
    models_read,
    parameters_of,
    untrained,
    wraps,
    wraps_part,
)
from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.arms import excludes
from fsdp_rules.model.wrapping import assignments, is_comprehended

#: How many names an optimizer's parameters are followed through.
DEEP = 5
#: What a dictionary of parameters is asked for.
VIEWS = frozenset({"copy", "items", "values"})


@dataclass(frozen=True)
class EarlyGroups:
    """The statement ``collected`` collects parameters of ``model`` above a wrap, for ``optimizer`` below it.

    ``moves``: it may stand behind ``anchor`` just as well, the statement (or loop) that wraps. ``elsewhere``: the
    wrapping call is one of a function of the project. ``note`` says where FSDP1 trained nothing this way.
    """

    name: str
    collected: cst.CSTNode
    optimizer: cst.Call
    model: str
    anchor: cst.CSTNode
    moves: bool
    elsewhere: bool
    note: str


@once
def early_groups(call: cst.Call, file: File) -> list[EarlyGroups]:
    """What is collected above the wrapping ``call`` and trained by an optimizer below it."""
    if not wraps(call, file):
        return []
    scope, line = file.scope(call), file.span(call).line
    # What the call is told to ignore stays as it is.
    given = {dotted(one) for kind in (cst.Name, cst.Attribute) for one in file.inside(call, kind)}
    found: dict[cst.CSTNode, EarlyGroups] = {}
    for built, parameters in _given_parameters(file.module, file).get(scope, ()):
        if file.span(built).line <= line:
            continue
        for name, statement in _collected(parameters, call, file, DEEP):
            model = _model(statement, call, file)
            if model is None or statement in found or name in given or excludes(statement, call, file):
                continue
            anchor = anchor_of(call, statement, name, file)
            found[statement] = EarlyGroups(
                name,
                statement,
                built,
                model,
                anchor,
                isinstance(statement, cst.Assign)
                and is_wrapped_by(call, model, file)
                and may_move(statement, anchor, file),
                file.fsdp1(call.func) not in WRAPPERS,
                untrained(call) if file.fsdp1(call.func) == FSDP else "",
            )
    return list(found.values())


@once
def _given_parameters(module: cst.Module, file: File) -> dict[str, list[tuple[cst.Call, cst.BaseExpression]]]:
    """The calls of each scope that are given parameters, and what they are given."""
    found: dict[str, list[tuple[cst.Call, cst.BaseExpression]]] = defaultdict(list)
    for built in file.nodes(cst.Call):
        parameters = parameters_of(built, file)
        if parameters is not None and parameters is not built:
            found[file.scope(built)].append((built, parameters))
    return found


def _collected(node: cst.CSTNode, call: cst.Call, file: File, depth: int) -> Iterator[tuple[str, cst.CSTNode]]:
    """The names that ``node`` reads as they are, each with the statements above ``call`` that put something into it."""
    line = file.span(call).line
    if not depth:
        return
    for name in _read(node, file):
        text = dotted(name) or ""
        for statement in assignments(file):
            value = statement.value
            is_it = len(statement.targets) == 1 and dotted(statement.targets[0].target) == text
            if not is_it or file.scope(statement) != file.scope(call):
                continue
            # What is collected of the wrapped model is not from before.
            is_made = value is call or value in file.ancestors(call)
            if value is node or is_made or file.span(value).line > file.span(name).line:
                continue
            if file.span(value).line < line:
                yield text, statement
            yield from _collected(value, call, file, depth - 1)
        for loop in file.nodes(cst.For):
            above = file.span(loop).line < line and loop not in file.ancestors(call)
            if above and file.scope(loop) == file.scope(call) and _fills(loop, text, file):
                yield text, loop


def _read(node: cst.CSTNode, file: File) -> Iterator[cst.Name | cst.Attribute]:
    """The names and attributes of ``node`` that stand for what they hold: no receiver, and nothing in a comparison."""
    compared = {one for comparison in file.inside(node, cst.Comparison) for one in _uses(comparison, file)}
    for one in _uses(node, file):
        parent = file.parent(one)
        is_receiver = isinstance(parent, cst.Attribute) and parent.attr.value not in VIEWS
        text = dotted(one)
        if text is None or is_receiver or one in compared or is_comprehended(one, text.partition(".")[0], file):
            continue
        yield one


def _uses(node: cst.CSTNode, file: File) -> Iterator[cst.Name | cst.Attribute]:
    """The names and attributes of ``node``, without those that say which attribute of something is meant."""
    places: list[cst.Name | cst.Attribute] = [*file.inside(node, cst.Name), *file.inside(node, cst.Attribute)]
    for one in places:
        parent = file.parent(one)
        if not (isinstance(parent, cst.Attribute) and parent.attr is one):
            yield one


def _fills(loop: cst.For, name: str, file: File) -> bool:
    """Whether the body of ``loop`` does something with ``name``, which it is not over."""
    inside = any(dotted(use) == name for use in _uses(loop.body, file))
    return inside and all(dotted(use) != name for use in (loop.iter, *names_in(loop.iter)))


def _model(statement: cst.CSTNode, call: cst.Call, file: File) -> str | None:
    """The model that ``call`` wraps and whose parameters ``statement`` collects."""
    if isinstance(statement, cst.For):
        read = models_read(statement.iter, file)
    elif isinstance(statement, cst.Assign):
        read = models_read(statement.value, file)
    else:
        return None
    return next((one for one in read if wraps_part(call, one, file)), None)
