"""The ``with`` that enters a context which is stored, or made by a function that is stored, before it."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import call_of, root_of
from fsdp_rules.file.file import File
from fsdp_rules.file.reaching import definitions


@dataclass(frozen=True)
class Entered:
    """``block`` enters, as its item ``position``, what one of the statements ``made`` gave the name ``name``.

    ``called``: the name holds a function that makes the context, and the block calls it.
    """

    block: cst.With
    position: int
    name: str
    made: tuple[cst.Assign, ...]
    called: bool

    @property
    def values(self) -> tuple[cst.BaseExpression, ...]:
        """What the statements assign."""
        return tuple(statement.value for statement in self.made)


def entered_by_name(value: cst.CSTNode, file: File) -> Entered | None:
    """The one block that enters what the assignment around ``value`` stores, and nothing else reads; else None.

    Both are in one function, and no other kind of statement gives the name what the block enters.
    """
    statement = file.statement(value)
    name = _name(statement)
    if name is None or not file.scope(name):
        return None
    reads = [(use, reached) for use in file.uses(name.value) if statement in (reached := definitions(use, file) or [])]
    if len(reads) != 1:
        return None
    use, reached = reads[0]
    made = [entry for entry in reached if isinstance(entry, cst.Assign) and _name(entry) is not None]
    inside = f"{file.scope(name)}."
    others = [one for one in file.uses(name.value) if one is not use and f"{file.scope(one)}.".startswith(inside)]
    if len(made) < len(reached) or any(set(made) & set(definitions(one, file) or made) for one in others):
        return None
    call = call_of(use, file)
    item = file.parent(use if call is None or call.args else call)
    block = file.parent(item) if isinstance(item, cst.WithItem) and item.asname is None else None
    if not isinstance(block, cst.With) or not isinstance(item, cst.WithItem) or block.asynchronous is not None:
        return None
    if file.scope(use) != file.scope(name) or _comes_round(block, name, file):
        return None
    made.sort(key=lambda entry: file.span(entry).line)
    return Entered(block, list(block.items).index(item), name.value, tuple(made), call is not None)


def is_rebound(found: Entered, receiver: cst.BaseExpression, file: File) -> bool:
    """Whether the name that ``receiver`` starts with may mean another object by the time that the block is entered."""
    root = root_of(receiver)
    first, last = file.span(found.made[0]).line, file.span(found.block).line
    bound = file.bindings.found.get((file.scope(found.block), root.value if isinstance(root, cst.Name) else ""), ())
    between = [file.span(entry.statement).line for entry in bound]
    parts = file.code(receiver)
    assigned = [
        file.span(entry).line
        for entry in file.nodes(cst.Assign)
        if any(parts.startswith(file.code(target.target)) for target in entry.targets)
    ]
    return any(first <= line <= last for line in (*between, *assigned))


def _name(statement: cst.CSTNode) -> cst.Name | None:
    """The one name that ``statement`` assigns, and nothing but it."""
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0].target
    return target if isinstance(target, cst.Name) else None


def _comes_round(block: cst.With, name: cst.Name, file: File) -> bool:
    """Whether a loop around ``block`` may lead from an assignment below it back to it."""
    line = file.span(block).line
    below = [
        entry.statement
        for entry in file.bindings.found.get((file.scope(name), name.value), ())
        if file.span(entry.statement).line >= line
    ]
    loops = {entry for entry in file.ancestors(block) if isinstance(entry, cst.For | cst.While)}
    return any(loops.intersection(file.ancestors(statement)) for statement in below)
