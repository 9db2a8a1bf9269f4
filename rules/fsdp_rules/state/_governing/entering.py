"""The ``with`` statements that enter a kind of state: by FSDP1's own call, or by a function that returns it."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.flowing import known_as
from fsdp_rules.state._governing.context import is_context_call, means_the_same, read_context
from fsdp_rules.state._governing.returned import entered_function, returned_context, yields_model
from fsdp_rules.state._governing.state_settings import Context


@once
def context_items(node: cst.With, file: File) -> tuple[tuple[cst.WithItem, cst.Call], ...]:
    """The context managers of a ``with`` that set the kind of state.

    Also under a condition (``... if c else ...``), by the name that they were assigned to, and by a call of a function
    that returns one.
    """
    found: list[tuple[cst.WithItem, cst.Call]] = []
    for item in node.items:
        manager = _manager(item.item, file)
        for call in (manager, *(manager.children if _is_optional(manager, file) else ())):
            if isinstance(call, cst.Call) and (is_context_call(call, file) or entered_function(call, file) is not None):
                found.append((item, call))
    return tuple(found)


def read_entered(call: cst.Call, file: File) -> Context | None:
    """What the context manager ``call`` of a ``with`` sets; None where its arguments cannot be told."""
    found = None if is_context_call(call, file) else entered_function(call, file)
    if found is None:
        return read_context(call, file)
    context, name = returned_context(call, found, file), name_of_model(call, file)
    return replace(context, subject=name) if context is not None and name is not None else context


def name_of_model(call: cst.Call, file: File) -> cst.Name | None:
    """The name that a ``with`` gives the model that ``call``, of a function of the program, gets: ``... as name``."""
    item, found = file.parent(call), entered_function(call, file)
    name = item.asname.name if isinstance(item, cst.WithItem) and item.asname is not None else None
    return name if isinstance(name, cst.Name) and found is not None and yields_model(found) else None


def given_model(call: cst.Call, file: File) -> cst.BaseExpression | None:
    """The model that ``call``, of a function of the program, is given."""
    found = entered_function(call, file)
    context = returned_context(call, found, file) if found is not None else None
    return context.subject if context is not None else None


def _manager(node: cst.BaseExpression, file: File) -> cst.BaseExpression:
    """``node``, or the call that its name stands for where nothing else reads the name and the call means the same."""
    found = file.binding(node)
    if found is None or not isinstance(node, cst.Name) or not isinstance(found.value, cst.Call):
        return node
    scope = file.scope(node)
    if file.scope(found.value) != scope or [use for use in file.uses(node.value) if file.scope(use) == scope] != [node]:
        return node
    kept = all(
        means_the_same(argument.value, node, file) and not _is_rebound(argument.value, found.value, node, file)
        for argument in found.value.args
    )
    return found.value if kept else node


def _is_rebound(value: cst.CSTNode, start: cst.CSTNode, end: cst.CSTNode, file: File) -> bool:
    """Whether a name that ``value`` reads is bound between the two places."""
    first, last = file.span(start).line, file.span(end).line
    return any(
        first < file.span(binding.statement).line < last
        for name in names_in(value)
        for binding in file.bindings.found.get((file.scope(start), name.value), [])
    )


def _is_optional(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is a conditional expression with ``nullcontext()`` for one arm."""
    return isinstance(node, cst.IfExp) and any(
        isinstance(arm, cst.Call) and file.resolved(arm.func) == "contextlib.nullcontext"
        for arm in (node.body, node.orelse)
    )


def switching(block: cst.With, file: File) -> list[tuple[cst.BaseExpression, cst.Call]]:
    """What ``block`` enters, with the calls of the tree's own functions in it, or in its name, that set the kind."""
    entries = [(item.item, one) for item in block.items for one in file.values(item.item) or [item.item]]
    calls = [(entry, call) for entry, value in entries for call in file.inside(value, cst.Call)]
    return [(entry, call) for entry, call in calls if known_as("sets_state_type", call, file)]


def yields(block: cst.With, file: File) -> bool:
    """Whether ``block`` is the body of a context manager or generator that runs other code inside it."""
    return bool(file.inside(block.body, cst.Yield))


@once
def unseen_contexts(module: cst.Module, file: File) -> list[cst.Call]:
    """Calls of ``state_dict_type`` whose block is unseen: no ``with`` enters them where they stand, or it yields."""
    if "state_dict_type" not in file.text:
        return []
    found = [(call, _entering(call, file)) for call in file.inside(module, cst.Call) if is_context_call(call, file)]
    return [call for call, block in found if block is None or yields(block, file)]


def entered(call: cst.Call, file: File) -> bool:
    """Whether a ``with`` of the same function certainly enters the context manager ``call``."""
    return _entering(call, file) is not None


def _entering(call: cst.Call, file: File) -> cst.With | None:
    for block in file.nodes(cst.With):
        if any(call is entry for _, entry in context_items(block, file)):
            return block
    return None


@once
def governing_with(node: cst.CSTNode, file: File) -> tuple[tuple[cst.With, cst.Call], ...]:
    """The ``with`` statements that set a kind of state around ``node``, innermost first.

    A function that is defined in a block counts as a part of it, whether or not it is called there.
    """
    return tuple(
        (ancestor, call)
        for ancestor, inside in branches(node, file)
        if isinstance(ancestor, cst.With) and inside is ancestor.body
        for _, call in reversed(context_items(ancestor, file))
    )
