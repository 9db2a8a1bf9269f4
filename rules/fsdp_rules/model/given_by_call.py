"""Whether a call gives the sharded model that something is asked of at once, so that it has no name."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import value_of
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.places import INNER

#: Objects of other libraries that have methods of FSDP1's names, by what people call them.
FOREIGN = re.compile(r"accelerat|fabric|engine|strategy|trainer|optim|scaler|plugin|utils?$|clip", re.IGNORECASE)


def is_given_by_call(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is what a function of the project gives, or an attribute of that, and may be a sharded model."""
    names: list[str] = []
    whole = node
    while isinstance(node, cst.Attribute | cst.Subscript):
        names[:0] = [node.attr.value] if isinstance(node, cst.Attribute) else []
        node = node.value
    if not isinstance(node, cst.Call) or FOREIGN.search(names[-1] if names else last_name(node.func)):
        return False
    if isinstance(node.func, cst.Attribute) and FOREIGN.search(last_name(node.func.value)):
        return False
    if value_of(whole, file).model is not Certainty.NO:
        return True
    attribute = ".".join(name for name in names if f".{name}" not in INNER)
    called = _called(node, file)
    if called is None:
        return bool(names) and file.project.may_hold(names[-1])
    return any(file.project.may_return_wrapped(file.path, name, attribute) for name in called)


def is_made_by_table(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is, or is a part of, what an entry of a table makes: ``KINDS[name](...)``, by a name or not."""
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    made = file.objects.origin(node)
    if not isinstance(made, cst.Call):
        return False
    func = file.objects.origin(made.func)
    return isinstance(func, cst.Subscript) or (isinstance(func, cst.Call) and last_name(func.func) == "get")


def _called(call: cst.Call, file: File) -> list[str] | None:
    """The last names of what ``call`` may run: of an entry of a table, those of all; None where that is unseen."""
    if not isinstance(call.func, cst.Subscript):
        return [last_name(call.func)]
    table = file.objects.origin(call.func.value)
    if not isinstance(table, cst.Dict | cst.List | cst.Tuple):
        return None
    return [last_name(one.value) for one in table.elements]
