"""What is given to a field of a class from outside of it: by the arguments of its constructor, and by copies of it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.construction._plan.members import classes_called, member_of
from fsdp_rules.file.file import File
from fsdp_rules.file.reads import is_read
from fsdp_rules.project.configured import Slot

#: What takes the fields of any object by their names.
COPIES = frozenset({"SimpleNamespace", "_replace", "cls", "dict", "evolve", "partial", "replace", "type"})


def field_of(slot: Slot) -> tuple[str, str]:
    """The class whose field or method ``slot`` is, and the name of that; "" for a name of the module."""
    owner, _, name = slot.name.rpartition(".")
    return owner, name


def given_by(call: cst.Call, slot: Slot, file: File) -> cst.BaseExpression | None:
    """What ``call`` gives the field ``slot``, or may give it."""
    owner, name = field_of(slot)
    called = (file.resolved(call.func) or file.code(call.func)).rpartition(".")[2]
    if not owner or called not in (owner, *COPIES):
        return None
    for argument in call.args:
        if argument.keyword is not None and argument.keyword.value == name:
            return argument.value
    classes = [one for one in classes_called(called, file) if one.path == slot.path]
    order = classes[0].constructed if classes else ()
    before = [argument for argument in call.args if argument.keyword is None and not argument.star]
    if name in order and len(before) > order.index(name):
        return before[order.index(name)].value
    return None


def uses_of_member(slot: Slot, file: File) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """What may read (True) or write the field or method ``slot`` in ``file``, but for what the class itself assigns."""
    owner, name = field_of(slot)
    for attribute in file.nodes(cst.Attribute):
        if attribute.attr.value != name:
            continue
        found = member_of(attribute, file)
        is_own = found.owner is not None and (found.owner.path, found.owner.name) == (slot.path, owner)
        if not is_own and owner not in found.may_be:
            continue
        if is_read(attribute, file.layout):
            yield attribute, True
        elif file.path != slot.path or not _is_of_self(attribute, owner, file):
            yield attribute, False
    for call in file.nodes(cst.Call):
        value = given_by(call, slot, file)
        if value is not None:
            yield value, False


def _is_of_self(attribute: cst.Attribute, owner: str, file: File) -> bool:
    is_self = isinstance(attribute.value, cst.Name) and attribute.value.value == "self"
    return is_self and file.scope(attribute).partition(".")[0] == owner
