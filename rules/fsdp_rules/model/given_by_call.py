"""Whether a call gives the sharded model that something is asked of at once, so that it has no name."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import FOREIGN
from fsdp_rules.project.places import INNER


def is_given_by_call(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is what a function of the project gives, or an attribute of that, and may be a sharded model."""
    names: list[str] = []
    while isinstance(node, cst.Attribute):
        names.insert(0, node.attr.value)
        node = node.value
    if not isinstance(node, cst.Call) or FOREIGN.search(names[-1] if names else last_name(node.func)):
        return False
    if isinstance(node.func, cst.Attribute) and FOREIGN.search(last_name(node.func.value)):
        return False
    attribute = ".".join(name for name in names if f".{name}" not in INNER)
    return file.project.may_return_wrapped(last_name(node.func), attribute)
