"""The ``optimizer.load_state_dict`` that takes what FSDP1 made of a state, so that one call can stand for both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from fsdp_rules.file.expressions import given_to
from fsdp_rules.file.file import File
from fsdp_rules.file.reaching import run_before
from fsdp_rules.file.tree import statements_of
from fsdp_rules.state._governing.calls import Action, StateCall, state_call

BRANCHING = (cst.If, cst.For, cst.While, cst.Try, cst.TryStar, cst.Match)
#: Statements that leave what stands around them.
LEAVING: tuple[type[cst.CSTNode], ...] = (cst.Return, cst.Raise, cst.Break, cst.Continue)


@dataclass(frozen=True, eq=False)
class Load:
    """A ``load_state_dict`` statement. ``target`` is the optimizer, ``makers`` are the calls whose result it takes.

    ``deleted`` is the statement that deletes the name of the result afterwards.
    """

    call: cst.Call
    statement: cst.CSTNode
    target: cst.BaseExpression
    makers: tuple[cst.Call, ...]
    deleted: cst.CSTNode | None = None


def find_load(state: StateCall, file: File) -> Load | None:
    """The one load that certainly takes the result of ``state``, and nothing else does; None where there is none."""
    load = _nested(state.call, file) or _assigned(state.call, file)
    if load is None or any(_may_be_skipped(load.call, maker, file) for maker in load.makers):
        return None
    for maker in load.makers:
        other = state_call(maker, file)
        if other is None or other.action is not Action.SET_OPTIM or other.problem or other.loads:
            return None
        if other.optim is not None and file.code(other.optim) != file.code(load.target):
            return None
    return load


def result_is_read(call: cst.Call, file: File) -> bool:
    """Whether anything takes the result of ``call``."""
    parent = file.parent(call)
    if isinstance(parent, cst.Expr):
        return False
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0].target, cst.Name):
        return bool(_reads(parent.targets[0].target, parent, file)) or not file.scope(call)
    return True


def _nested(call: cst.Call, file: File) -> Load | None:
    outer = given_to(call, file)
    return _load(outer, (call,), file) if outer is not None else None


def _load(call: cst.Call, makers: tuple[cst.Call, ...], file: File) -> Load | None:
    statement = file.parent(call)
    if (
        isinstance(statement, cst.Expr)
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "load_state_dict"
        and len(call.args) == 1
    ):
        return Load(call, statement, call.func.value, makers)
    return None


def _assigned(call: cst.Call, file: File) -> Load | None:
    statement = file.parent(call)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0].target
    if not isinstance(target, cst.Name) or file.function(call) is None:
        return None
    after = _reads(target, statement, file)
    deleted = [use for use in after if isinstance(file.parent(use), cst.Del)]
    reads = [use for use in after if use not in deleted]
    if len(deleted) > 1 or any(_line(use, file) < _line(reads[0], file) for use in deleted if reads):
        return None
    outer = file.parent(file.parent(reads[0]) or reads[0]) if len(reads) == 1 else None
    if not isinstance(outer, cst.Call):
        return None
    last = _line(outer, file)
    before = [
        binding
        for binding in file.bindings.found.get((file.scope(target), target.value), [])
        if _line(binding.statement, file) < last
    ]
    made = {
        binding.statement: binding.value
        for binding in before
        if isinstance(binding.value, cst.Call) and _makes(binding.value, file)
    }
    if not _decides(outer, made, file):
        return None
    first = min(_line(maker, file) for maker in made)
    if any(_line(other.statement, file) > first for other in before if other.statement not in made):
        return None
    load = _load(outer, tuple(made.values()), file)
    return replace(load, deleted=file.parent(deleted[0])) if load is not None and deleted else load


def _makes(call: cst.Call, file: File) -> bool:
    found = state_call(call, file)
    return found is not None and found.action is Action.SET_OPTIM


def _decides(load: cst.Call, made: dict[cst.CSTNode, cst.Call], file: File) -> bool:
    """Whether one of the statements in ``made`` has run whenever ``load`` runs."""
    return any(_always_makes(one, made, file) for one in run_before(load, file))


def _may_be_skipped(load: cst.Call, maker: cst.Call, file: File) -> bool:
    """Whether ``load`` may not run although ``maker`` has."""
    around = set(file.ancestors(maker))
    for ancestor in file.ancestors(load):
        if isinstance(ancestor, BRANCHING) and ancestor not in around:
            return True
    function = file.function(load)
    if function is None:
        return False
    exits = [entry for kind in LEAVING for entry in file.inside(function, kind)]
    return any(_line(maker, file) < _line(entry, file) < _line(load, file) for entry in exits)


def _always_makes(statement: cst.CSTNode, made: dict[cst.CSTNode, cst.Call], file: File) -> bool:
    if statement in made:
        return True
    if isinstance(statement, cst.With):
        return any(_always_makes(entry, made, file) for entry in statements_of(statement.body.body))
    if isinstance(statement, cst.If) and statement.orelse is not None:
        other = statement.orelse
        branch = [other] if isinstance(other, cst.If) else statements_of(other.body.body)
        return any(_always_makes(entry, made, file) for entry in statements_of(statement.body.body)) and any(
            _always_makes(entry, made, file) for entry in branch
        )
    return False


def _reads(target: cst.Name, statement: cst.CSTNode, file: File) -> list[cst.Name]:
    """Where the name is read after ``statement``, in its function and the functions inside that."""
    scope, line = file.scope(target), file.span(statement).end_line
    return [use for use in file.uses(target.value) if _within(file.scope(use), scope) and file.span(use).line > line]


def _within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.")


def _line(node: cst.CSTNode, file: File) -> int:
    return file.span(node).line
