"""Functions in and around a block that sets the kind of state: they act on a state where they are called."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.callers import called
from fsdp_rules.file.expressions import call_of
from fsdp_rules.file.file import File
from fsdp_rules.state._governing.entering import governing_with

Definition = cst.FunctionDef | cst.Lambda | cst.ClassDef


def calls_of(block: cst.With, file: File) -> list[cst.Call]:
    """Every call in the body of ``block``, those in functions that it defines included."""
    return file.inside(block.body, cst.Call)


def escaping(node: cst.CSTNode, block: cst.With, file: File) -> str:
    """The function around ``node`` that ``block`` defines and that may run after it; "" where there is none."""
    return next((_name(entry) for entry in _definitions(node, block, file) if not _stays(entry, block, file)), "")


def calling_block(node: cst.CSTNode, file: File) -> cst.Call | None:
    """The setting of a ``with`` of this file in whose block the function around ``node`` is called."""
    function = file.function(node)
    if function is None or "state_dict_type" not in file.text:
        return None
    around = set(file.ancestors(node))
    for call in file.nodes(cst.Call):
        for block, setting in governing_with(call, file) if called(call, file) is function else ():
            if block not in around:
                return setting
    return None


def _definitions(node: cst.CSTNode, block: cst.With, file: File) -> Iterator[Definition]:
    for ancestor in file.ancestors(node):
        if ancestor is block:
            return
        if isinstance(ancestor, Definition):
            yield ancestor


def _name(definition: Definition) -> str:
    return "a lambda" if isinstance(definition, cst.Lambda) else definition.name.value


def _stays(definition: Definition, block: cst.With, file: File) -> bool:
    """Whether ``definition`` is a plain function that nothing but ``block`` and functions like it call."""
    if not isinstance(definition, cst.FunctionDef) or definition.asynchronous is not None or definition.decorators:
        return False
    outer = file.scope(definition)
    for use in file.uses(definition.name.value):
        if file.scope(use) != outer and not file.scope(use).startswith(f"{outer}." if outer else ""):
            continue
        around = list(file.ancestors(use))
        if definition in around:
            continue
        if call_of(use, file) is None or block.body not in around:
            return False
        if not all(_stays(entry, block, file) for entry in _definitions(use, block, file)):
            return False
    return True
