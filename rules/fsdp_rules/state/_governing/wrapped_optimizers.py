"""Whether the optimizer of a state is an object around another one."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.state._optimizer_objects import is_an_optimizer

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
