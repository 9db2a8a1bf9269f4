"""``no_sync`` that is not entered where it is called: stored under a name first, or put on an exit stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import attribute_of, is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.negation import asserted, negated
from fsdp_rules.file.nothing import Chosen, chosen, is_nothing
from fsdp_rules.file.stored_contexts import Entered, entered_by_name, is_rebound
from fsdp_rules.file.tree import Code
from fsdp_rules.verdict.diagnosis import Edit, ReplaceStatement, remove

STACKS = frozenset({"contextlib.ExitStack", "contextlib.AsyncExitStack"})
FLAGS = ("syncs_gradients", "reduces_gradients", "fsdp_syncs_gradients")


@dataclass(frozen=True)
class Stored:
    """The block that enters it, which of its items does, the flag that is set around it, and the edits above it.

    ``made`` are the statements that store it. ``condition`` is the flag where nothing stores that. ``is_first``: no
    other use of ``no_sync`` stands for the edits.
    """

    block: cst.With
    position: int
    flag: str
    condition: Chosen | None
    edits: tuple[Edit, ...]
    is_first: bool
    made: tuple[cst.Assign, ...]


def synchronised(choice: Chosen, code: Code) -> str:
    """Whether gradients are synchronised where ``choice`` may enter ``no_sync``, as text."""
    if choice.condition is None:
        return "False"
    return asserted(choice.condition, code) if choice.otherwise else negated(choice.condition, code)


def stored(node: cst.BaseExpression, receiver: cst.BaseExpression, file: File) -> Stored | None:
    """What becomes of ``node``, ``receiver.no_sync`` or its call, that a name holds until one block enters it."""
    found = entered_by_name(node, file)
    if found is None or not is_repeatable(receiver) or is_rebound(found, receiver, file):
        return None
    every = [_of(value, found, file.code(receiver), file) for value in found.values]
    choices = [choice for choice in every if choice is not None]
    if len(choices) < len(every):
        return None
    is_lazy = any(isinstance(value, cst.Lambda) for value in found.values)
    if is_lazy and len(choices) > 1:
        return None
    named = [choice.node for choice in choices if _names(choice.node)]
    first = bool(named) and named[0] is node
    if is_lazy:
        return Stored(found.block, found.position, "", choices[0], (remove(found.made[0]),), first, found.made)
    around = file.function(found.block)
    several = around is not None and len({file.code(entry) for entry in _stored_names(around, file)}) > 1
    flag = file.fresh(found.made[0], *((f"{found.name}_syncs",) if several else FLAGS))
    edits = tuple(_assigned(statement, flag, choice) for statement, choice in zip(found.made, choices, strict=True))
    return Stored(found.block, found.position, flag, None, edits, first, found.made)


def _stored_names(function: cst.FunctionDef, file: File) -> list[cst.CSTNode]:
    """What the statements of ``function`` assign ``no_sync`` to."""
    named = (*file.inside(function, cst.Attribute), *file.inside(function, cst.Call))
    uses = (entry for entry in named if attribute_of(entry, "no_sync") is not None)
    statements = (file.statement(entry) for entry in uses)
    return [entry.targets[0].target for entry in statements if isinstance(entry, cst.Assign)]


def _assigned(statement: cst.Assign, flag: str, choice: Chosen) -> Edit:
    if not _names(choice.node):
        return ReplaceStatement(statement, lambda code: f"{flag} = True")
    return ReplaceStatement(statement, lambda code: f"{flag} = {synchronised(choice, code)}")


def _names(node: cst.BaseExpression) -> bool:
    return _receiver(node) is not None


def _receiver(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The model whose ``no_sync`` is ``node``, or called by it."""
    own = attribute_of(node, "no_sync")
    return attribute_of(node.func, "no_sync") if own is None and isinstance(node, cst.Call) else own


def _of(value: cst.BaseExpression, found: Entered, receiver: str, file: File) -> Chosen | None:
    """The choice that ``value`` is: of ``no_sync`` of the text ``receiver``, or of nothing; None for any other."""
    called = not found.called
    if isinstance(value, cst.Lambda):
        if not found.called or value.params.params:
            return None
        value, called = value.body, True
    if is_nothing(value, file, called=called):
        return Chosen(value)
    arms: Sequence[cst.BaseExpression] = (value.body, value.orelse) if isinstance(value, cst.IfExp) else (value,)
    for arm in arms:
        model = _receiver(arm)
        calls = isinstance(arm, cst.Call) and attribute_of(arm, "no_sync") is None
        if model is None or calls is not called:
            continue
        choice = chosen(arm, file, called)
        plain = not isinstance(arm, cst.Call) or not calls or not arm.args
        if plain and choice is not None and file.code(model) == receiver:
            return choice[0]
    return None


@dataclass(frozen=True)
class Pushed:
    """The ``statement`` that puts ``no_sync`` on the exit stack called ``stack``, which ``block`` makes."""

    statement: cst.Expr
    stack: str
    choice: Chosen
    block: cst.With


def pushed(call: cst.Call, file: File) -> Pushed | None:
    """How ``call`` is put on an exit stack that a ``with`` around makes, None where it is not."""
    found = chosen(call, file)
    argument = found[1] if found is not None else None
    outer = file.parent(argument) if isinstance(argument, cst.Arg) else None
    statement = file.parent(outer) if isinstance(outer, cst.Call) and len(outer.args) == 1 else None
    if found is None or not isinstance(statement, cst.Expr) or not isinstance(outer, cst.Call):
        return None
    method = outer.func
    if not isinstance(method, cst.Attribute) or method.attr.value != "enter_context":
        return None
    stack = file.code(method.value)
    for block in file.ancestors(statement):
        if not isinstance(block, cst.With):
            continue
        for item in block.items:
            made = item.item if item.asname is not None and file.code(item.asname.name) == stack else None
            if isinstance(made, cst.Call) and file.resolved(made.func) in STACKS:
                return Pushed(statement, stack, found[0], block)
    return None
