"""Whether an expression is an optimizer, or an object around one."""

from __future__ import annotations

import re

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


#: What a class needs so that torch's functions for states can read its optimizer through it.
READABLE = re.compile(r"\bparam_groups\b|def __getattr__\b")
LACKS = "{name} is a wrapper without param_groups, which get_optimizer_state_dict reads"
ASSUMED = "assumes {name} passes on its optimizer's param_groups, state and step"


def wrapper_of(optim: cst.BaseExpression, file: File) -> tuple[str, str]:
    """What keeps the optimizer ``optim`` from being given to torch's functions, and what has to be true for it."""
    made = file.value(optim)
    if not isinstance(made, cst.Call) or (file.resolved(made.func) or "").startswith("torch."):
        return "", ""
    if not any(is_an_optimizer(argument.value, file) for argument in made.args):
        return "", ""
    name = last_name(made.func)
    for owner in file.nodes(cst.ClassDef):
        if owner.name.value == name and not READABLE.search(file.code(owner)):
            return LACKS.format(name=name), ""
    # Methods such as accelerator.prepare give what is an optimizer of torch itself.
    return ("", ASSUMED.format(name=name)) if name[:1].isupper() else ("", "")
