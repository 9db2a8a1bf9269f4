"""Places whose model is no sharded one yet: newly made, sharded further down, or by whoever calls the function."""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.fsdp1.names import FSDP_PACKAGE, canonical
from fsdp_rules.model.wrapping import SHARDING, may_wrap
from fsdp_rules.project.flow import Certainty


def is_not_sharded_yet(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether ``model`` is no sharded model at ``place``, whatever is known of its name."""
    return (
        _is_made_anew(place, model, file)
        or _is_sharded_around(place, model, file)
        or _is_prepared(place, model, file)
        or is_in_construction(place, model, file)
    )


def is_in_construction(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether a constructor around ``place`` has ``model``, an attribute of its object, and cannot have wrapped it.

    Neither the class nor what it inherits from is given a wrapped model where it is made, and none of their files
    imports what wraps one, so that only whoever makes the object can do it, afterwards.
    """
    function = file.function(place)
    if _root(model) != "self" or function is None or function.name.value != "__init__":
        return False
    family = _family(file.scope(place).rpartition(".")[0], file)
    constructors = [(path, f"{name}.__init__") for path, name in family]
    named, takes = file.project.named, file.project.takes
    given = any(named(*one, text).model is not Certainty.NO for one in constructors for text in takes.get(one, ()))
    return not given and not any(_imports_wraps(path, file) for path in {path for path, _ in family})


def _family(name: str, file: File) -> set[tuple[str, str]]:
    """The class of the qualified ``name``, and all classes of the tree that it inherits from, each with its file."""
    owners = file.project.owners
    found: set[tuple[str, str]] = set()
    pending = [(file.path, name)]
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += [entry for base in owners.bases.get(one, ()) for entry in owners.classes.get(base, ())]
    return found


def _imports_wraps(path: str, file: File) -> bool:
    """Whether the file at ``path`` imports FSDP1, FSDP2, or a function of the tree that gives a wrapped model."""
    for target in file.project.aliases(path).values():
        full = file.project.resolve(target)
        if canonical(full) is not None or full.startswith(FSDP_PACKAGE):
            return True
        if file.project.may_return_wrapped(file.path, full.rpartition(".")[2]):
            return True
    return False


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
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


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


def _is_made_anew(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether what stands above ``place`` in its block has just given ``model`` a module that is not wrapped."""
    text, statement = file.code(model), file.statement(place)
    for entry in reversed(file.block(statement)[: file.layout.number(statement) or 0]):
        calls = file.inside(entry, cst.Call)
        if isinstance(entry, cst.Assign) and any(file.code(target.target) == text for target in entry.targets):
            parts = {file.code(node) for kind in (cst.Name, cst.Attribute) for node in file.inside(entry.value, kind)}
            shards = any(may_wrap(call, file) or file.resolved(call.func) in SHARDING for call in calls)
            return isinstance(entry.value, cst.Call) and not shards and text not in parts
        if any(file.code(call.func) == text for call in calls):
            return False
    return False
