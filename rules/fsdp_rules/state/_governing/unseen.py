"""Context managers that may set the kind of state in code this tool cannot see."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.state._governing.context import unseen_contexts
from fsdp_rules.state._governing.switching import switching


def unseen_manager(place: cst.Call, model: cst.BaseExpression, file: File) -> str:
    """The unseen context manager that may govern the state of ``model`` at ``place``, "" where there is none."""
    unseen = unseen_contexts(file.module, file)
    if any(file.scope(call) == file.scope(place) for call in unseen):
        return "state_dict_type"
    blocks = [ancestor for ancestor in file.ancestors(place) if isinstance(ancestor, cst.With)]
    for block in blocks:
        for switch in switching(block, file):
            return file.code(switch.func)
    if not unseen and "handed_context" not in file.project.flags:
        return ""
    entered = [item.item for block in blocks for item in block.items]
    name = dotted(model) or file.code(model)
    return next((file.code(call.func) for call in entered if isinstance(call, cst.Call) and _has(call, name, file)), "")


def _has(call: cst.Call, model: str, file: File) -> bool:
    """Whether a context manager of the project's own gets hold of the model ``model``."""
    if (file.resolved(call.func) or "").startswith("torch."):
        return False
    given = [dotted(call.func) or "", *(dotted(argument.value) or "" for argument in call.args)]
    return any(text and (model == text or model.startswith(f"{text.partition('.')[0]}.")) for text in given)
