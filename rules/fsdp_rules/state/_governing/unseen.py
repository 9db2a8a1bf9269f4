"""Context managers that may set the kind of state in code this tool cannot see."""

from __future__ import annotations

import sys

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.project.places import module_name
from fsdp_rules.state._governing.entering import switching, unseen_contexts

#: Packages whose context managers set no kind of state.
_KNOWN = sys.stdlib_module_names | {"torch", "tqdm"}


def unseen_manager(place: cst.Call, model: cst.BaseExpression, file: File) -> str:
    """The unseen context manager that may govern the state of ``model`` at ``place``, "" where there is none."""
    unseen = unseen_contexts(file.module, file)
    if any(file.scope(call) == file.scope(place) for call in unseen):
        return "state_dict_type"
    blocks = [ancestor for ancestor in file.ancestors(place) if isinstance(ancestor, cst.With)]
    for block in blocks:
        for switch in switching(block, file):
            return file.code(switch.func)
    entered = [item.item for block in blocks for item in block.items]
    calls = [call for call in entered if isinstance(call, cst.Call)]
    named = dotted(model) or file.code(model)
    # Where nothing of the tree is unseen, a manager that gets hold of the model sets nothing.
    may_set = bool(unseen) or "handed_context" in file.project.flags
    found = (one for one in calls if may_set and _has(one, named, file))
    return next((file.code(one.func) for one in found), "")


def outer_manager(place: cst.Call, file: File) -> str:
    """The context manager around ``place`` that comes from a package outside of the tree which nobody knows."""
    for block in file.ancestors(place):
        for item in block.items if isinstance(block, cst.With) else ():
            func = item.item.func if isinstance(item.item, cst.Call) else item.item
            package = (file.resolved(func) or "").partition(".")[0]
            if (
                package
                and package not in _KNOWN
                and not any(package in module_name(path).split(".") for path in file.project.sources)
            ):
                return file.code(func)
    return ""


def _has(call: cst.Call, model: str, file: File) -> bool:
    """Whether a context manager of the project's own gets hold of the model ``model``."""
    if (file.resolved(call.func) or "").startswith("torch."):
        return False
    given = [dotted(call.func) or "", *(dotted(argument.value) or "" for argument in call.args)]
    return any(text and (model == text or model.startswith(f"{text.partition('.')[0]}.")) for text in given)
