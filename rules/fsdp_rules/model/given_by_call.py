"""Whether a call gives the sharded model that something is asked of at once, so that it has no name."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import known_as, value_of
from fsdp_rules.project.flow import Certainty

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
    # What an unseen table makes may be anything.
    is_unseen = isinstance(node.func, cst.Subscript) and not known_as("own", node.func, file)
    return is_unseen and bool(names) and file.project.may_hold(names[-1])
