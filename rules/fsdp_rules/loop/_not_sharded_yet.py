"""Places whose model is no sharded one yet: sharded further down, or by whoever calls the function."""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile

import libcst as cst

from fsdp_rules.file.expressions import last_name, root_of
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.wrapping import SHARDING


def is_not_sharded_yet(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether ``model`` is no sharded model at ``place``, whatever is known of its name."""
    return _is_sharded_around(place, model, file) or _is_prepared(place, model, file)


def is_filled_before_sharding(place: cst.CSTNode, file: File) -> bool:
    """Whether a loop around ``place`` goes through what a call gives of a model that is sharded after the loop."""
    for loop in takewhile(lambda one: not isinstance(one, cst.FunctionDef), file.ancestors(place)):
        if not isinstance(loop, cst.For):
            continue
        given = [
            argument.value for call in file.inside(file.objects.origin(loop.iter), cst.Call) for argument in call.args
        ]
        if any(_is_sharded_around(loop, value, file) for value in given):
            return True
    return False


def _is_prepared(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether the function around ``place`` is only given what its callers shard afterwards, and ``model`` is of that.

    A first run writes such functions, which materialize what is sharded next.
    """
    function = file.function(place)
    if not isinstance(function, cst.FunctionDef) or (file.scope(place), _root(model)) not in file.bindings.found:
        return False
    name, entered = function.name.value, file.project.entered
    if name in entered.values or any(path != file.path for (path, _), _ in entered.callers.get(name, ())):
        return False
    calls = [call for call in file.nodes(cst.Call) if last_name(call.func) == name]
    return bool(calls) and all(
        any(_is_sharded_around(call, argument.value, file) for argument in call.args) for call in calls
    )


def _root(node: cst.BaseExpression) -> str:
    root = root_of(node)
    return root.value if isinstance(root, cst.Name) else ""


def _is_sharded_around(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether the statement of ``place`` shards ``model``, or one further down does by ``fully_shard`` on every way.

    ``fully_shard`` takes a module once, so that it is no sharded one before.
    """
    lines = _sharding_lines(file.module, file).get(file.code(model))
    if lines is None:
        return False
    for entry in (place, *takewhile(lambda one: not isinstance(one, cst.FunctionDef), file.ancestors(place))):
        number = file.layout.number(entry)
        following = set() if number is None else set(file.block(entry)[number + 1 :])
        if any(line is entry or (is_native and line in following) for line, is_native in lines):
            return True
    return False


@once
def _sharding_lines(module: cst.Module, file: File) -> dict[str, list[tuple[cst.CSTNode, bool]]]:
    """The simple statements that shard each model, by its text, and whether ``fully_shard`` does it."""
    found: dict[str, list[tuple[cst.CSTNode, bool]]] = defaultdict(list)
    for call in file.inside(module, cst.Call):
        function = file.resolved(call.func)
        line = file.statement(call)
        if call.args and function in SHARDING and isinstance(line, cst.BaseSmallStatement):
            found[file.code(call.args[0].value)].append((line, function == SHARDING[0]))
    return dict(found)
