"""Context managers that may set the kind of state in code this tool cannot see."""

from __future__ import annotations

import sys

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.project.places import module_name
from fsdp_rules.state._governing.entering import switching, unseen_contexts

#: Packages whose context managers set no kind of state.
_KNOWN = sys.stdlib_module_names | {"torch", "tqdm"}


def unseen_manager(place: cst.Call, file: File) -> str:
    """The unseen context manager that may govern a state at ``place``, "" where there is none."""
    unseen = unseen_contexts(file.module, file)
    if any(file.scope(call) == file.scope(place) for call in unseen):
        return "state_dict_type"
    blocks = (ancestor for ancestor in file.ancestors(place) if isinstance(ancestor, cst.With))
    return next((file.code(switch.func) for block in blocks for _, switch in switching(block, file)), "")


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
