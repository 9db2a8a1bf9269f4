"""Which states the program may read after the model trained on: FSDP1's are copies, FSDP2's share the live tensors."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.stepping import may_step_between

#: Functions that have read what they are given, or loaded it, when they return; async_save copies before it does.
DONE = frozenset(f"torch.distributed.checkpoint.{name}" for name in ("async_save", "load", "save"))
#: What other functions are called that do, and those that do it later.
READS = re.compile(r"save|write|dump|upload|load|print|log|check|^(len|id|type|deepcopy)$", re.IGNORECASE)
LATER = re.compile(r"async|background|queue|submit|thread", re.IGNORECASE)
#: Calls that make a container of what they are given, and methods that put it into one.
CONTAINERS = frozenset({"dict", "list", "tuple", "OrderedDict"})
PUTS = frozenset({"update", "setdefault"})
HOLDERS = (
    *(cst.Arg, cst.BaseDictElement, cst.BaseElement, cst.Dict, cst.List, cst.Tuple),
    *(cst.IfExp, cst.AssignTarget, cst.Index, cst.SubscriptElement),
)
FINAL = (cst.Assert, cst.Comparison, cst.Del, cst.Expr, cst.If, cst.For, cst.UnaryOperation)


def may_outlive_a_step(state: cst.BaseExpression, file: File) -> bool:
    """Whether ``state`` may be read after a later step, in this function or where it goes from here."""
    return not _is_done_with(state, file, frozenset())


def _is_done_with(node: cst.BaseExpression, file: File, seen: frozenset[cst.CSTNode]) -> bool:
    for outer, inner in branches(node, file):
        if isinstance(outer, cst.Call):
            if outer.func is inner:
                return False
            name = last_name(outer.func)
            if isinstance(outer.func, cst.Attribute) and name in PUTS:
                return _holder_is_done_with(outer.func.value, node, file, seen)
            if name in CONTAINERS:
                continue
            if file.resolved(outer.func) in DONE or (READS.search(name) and not LATER.search(file.code(outer))):
                return True
            return isinstance(inner, cst.Arg) and _parameter_is_done_with(inner, outer, file, seen)
        if isinstance(outer, cst.Attribute):
            return outer.attr.value in ("keys", *PUTS)
        if isinstance(outer, cst.Assign | cst.AnnAssign):
            targets = [one.target for one in outer.targets] if isinstance(outer, cst.Assign) else [outer.target]
            if inner is not outer.value:
                return True
            return all(_holder_is_done_with(target, node, file, seen) for target in targets)
        if isinstance(outer, cst.Return):
            return _callers_are_done_with(outer, file, seen)
        if isinstance(outer, FINAL):
            return True
        if not isinstance(outer, cst.Subscript | cst.BaseString) and not isinstance(outer, HOLDERS):
            return False
    return False


def _holder_is_done_with(
    target: cst.BaseExpression, node: cst.CSTNode, file: File, seen: frozenset[cst.CSTNode]
) -> bool:
    """Whether every read of the local name ``target``, or of the container that it names, comes before a step."""
    while isinstance(target, cst.Subscript):
        target = target.value
    if not isinstance(target, cst.Name):
        return False
    statement, scope = file.statement(node), file.bindings.scope_of(target)
    return statement in seen or (scope == file.scope(node) and _reads_end(target, scope, statement, file, seen))


def _parameter_is_done_with(given: cst.Arg, call: cst.Call, file: File, seen: frozenset[cst.CSTNode]) -> bool:
    """Whether the function of this file that ``call`` names is done with what it is ``given`` when it returns."""
    if not isinstance(call.func, cst.Name) or given.star or any(argument.star for argument in call.args):
        return False
    functions = [entry for entry in file.nodes(cst.FunctionDef) if entry.name.value == call.func.value]
    if len(functions) != 1:
        return False
    names = {entry.name.value: entry for entry in functions[0].params.params}
    name = given.keyword.value if given.keyword else [*names, *[""] * len(call.args)][call.args.index(given)]
    if name not in names:
        return False
    scope = f"{file.scope(functions[0])}.{call.func.value}".removeprefix(".")
    return functions[0] in seen or _reads_end(names[name].name, scope, functions[0].params, file, seen | {functions[0]})


def _reads_end(name: cst.Name, scope: str, since: cst.CSTNode, file: File, seen: frozenset[cst.CSTNode]) -> bool:
    """Whether what ``name`` of ``scope`` is ``since`` a place is read there alone, and before a later step."""
    uses = [
        use
        for use in file.uses(name.value)
        if use is not name and file.statement(use) is not since and file.bindings.scope_of(use) == scope
    ]
    return all(
        file.scope(use) == scope
        and not any(isinstance(entry, cst.Lambda) for entry in file.ancestors(use))
        and not may_step_between(since, use, file)
        and _is_done_with(use, file, seen | {since})
        for use in uses
    )


def _callers_are_done_with(statement: cst.Return, file: File, seen: frozenset[cst.CSTNode]) -> bool:
    """Whether the function of ``statement`` is called in this file alone, and each caller is done with the state."""
    function = file.function(statement)
    if function is None or statement in seen:
        return function is not None
    name = function.name.value
    calls = [
        call for call in file.nodes(cst.Call) if last_name(call.func) == name and file.statement(call) is not statement
    ]
    # What is saved asks its parts for their states.
    is_own = name == "state_dict" or (bool(calls) and _is_of_this_file(function, file))
    return is_own and all(_is_done_with(call, file, seen | {statement}) for call in calls)


def _is_of_this_file(function: cst.FunctionDef, file: File) -> bool:
    """Whether no other file is likely to call ``function``: its name says so, or the file is a script."""
    is_nested = file.function(function) is not None
    return is_nested or function.name.value.startswith("_") or b"__main__" in file.project.sources.get(file.path, b"")
