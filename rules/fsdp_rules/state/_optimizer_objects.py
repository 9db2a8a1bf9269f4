"""Whether an expression is an optimizer."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import is_no_optimizer, value_of
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.optimizers import holds_optimizer, is_optimizer


def is_an_optimizer(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is an optimizer, by what reaches it, the class that it is made of or its name."""
    found = value_of(node, file)
    if found.optimizer is not Certainty.NO and found.model is Certainty.NO:
        return True
    made = file.value(node)
    if isinstance(made, cst.Call) and is_optimizer(file.resolved(made.func) or last_name(made.func)):
        return True
    return holds_optimizer(last_name(node).lower()) and not is_no_optimizer(node, file)
