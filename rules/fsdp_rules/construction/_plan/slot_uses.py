"""Where a file uses what a definition of FSDP1's configuration gives."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.construction._plan.member_writes import field_of, uses_of_member
from fsdp_rules.construction._plan.slots import ENTRIES, elements_of, home_of, is_local
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.reads import is_read
from fsdp_rules.project.configured import Slot

#: What gives a module by the text of its name.
IMPORTS = re.compile(r"\bimport_module\b|\b__import__\b|\bsys\.modules\b")


def uses_of(slot: Slot, file: File) -> Iterator[cst.CSTNode]:
    """The expressions in ``file`` that take what ``slot`` gives, and all that may but cannot be followed."""
    home = (slot.path, slot.name)
    owner, named = field_of(slot)
    for text in file.nodes(cst.SimpleString):
        if text.evaluated_value == named and not _is_exported(text, file):
            yield text
    if owner:
        for node, reads in uses_of_member(slot, file):
            yield from _used(node, slot, file) if reads else (node,)
        return
    for attribute in file.nodes(cst.Attribute):
        if attribute.attr.value == slot.name and is_read(attribute, file.layout):
            found = home_of(attribute, file)
            if found == home or (found is None and _may_be_of_module(attribute, file)):
                yield from _used(attribute, slot, file)
    for name in (name for names in file.bindings.reads.values() for name in names):
        parent = file.parent(name)
        if isinstance(parent, cst.Attribute) and parent.attr is name:
            continue
        found = home_of(name, file)
        unseen = found is None and name.value == slot.name and file.references.has_unseen_star
        if found == home or (unseen and not is_local(name.value, name, file)):
            yield from _used(name, slot, file)


def _may_be_of_module(attribute: cst.Attribute, file: File) -> bool:
    """Whether ``attribute`` may be one of a module; an object has what is read elsewhere alone."""
    text = dotted(attribute)
    if text is None:
        return IMPORTS.search(file.text) is not None
    return text.partition(".")[0] in file.aliases


def _used(node: cst.BaseExpression, slot: Slot, file: File) -> Iterator[cst.CSTNode]:
    parent = file.parent(node)
    if slot.part == ENTRIES and isinstance(parent, cst.Subscript) and parent.value is node:
        yield parent
        return
    if not slot.is_call or not isinstance(parent, cst.Call) or parent.func is not node:
        yield node
        return
    if not slot.part:
        if not isinstance(file.parent(parent), cst.Expr):
            yield parent
        return
    statement = file.parent(parent)
    elements = list(elements_of(statement, slot)) if isinstance(statement, cst.Assign) else []
    if not elements:
        yield parent
    for name, own in elements:
        reads = [use for use in file.uses(name.value) if file.scope(use) == file.scope(name)]
        if own == slot and not all(_is_target(use, file) for use in reads):
            yield name


def _is_target(name: cst.Name, file: File) -> bool:
    """Whether ``name`` is an element of what an assignment unpacks to."""
    around = next((entry for entry in file.ancestors(name) if not isinstance(entry, cst.Element | cst.Tuple)), None)
    return isinstance(around, cst.AssignTarget)


def _is_exported(node: cst.SimpleString, file: File) -> bool:
    """Whether ``node`` is an element of ``__all__``."""
    statement = file.statement(node)
    targets = statement.targets if isinstance(statement, cst.Assign) else ()
    return any(isinstance(entry.target, cst.Name) and entry.target.value == "__all__" for entry in targets)
