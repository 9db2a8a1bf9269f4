"""Whether a function that only gives the context for a kind of state can go: nothing calls it any more."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.state._governing.entering import context_items
from fsdp_rules.state._governing.returned import Returned, uses
from fsdp_rules.state._writing.verdict import problem_of


def is_removable(found: Returned, rule: str, file: File) -> bool:
    """Whether all that names it is a ``with`` of this file that enters what it gives, and ``rule`` rewrites it."""
    word = re.compile(rb"\b%s\b" % found.function.name.value.encode())
    if any(path != file.path and word.search(source) for path, source in file.project.sources.items()):
        return False
    blocks = [_entering(use, file) for use in uses(found, file)]
    return bool(blocks) and all(block is not None and _is_rewritten(block, rule, file) for block in blocks)


def assumption_of(found: Returned) -> str:
    """What has to be true for it to go, "" for a private one: a file that says nothing of FSDP may call it too."""
    name = found.function.name.value
    return "" if name.startswith("_") else f"assumes no other file calls {name}"


def _entering(use: cst.CSTNode, file: File) -> cst.With | None:
    """The ``with`` that enters what the call of ``use`` gives."""
    call = file.parent(use)
    item = file.parent(call) if isinstance(call, cst.Call) and call.func is use else None
    block = file.parent(item) if item is not None else None
    if isinstance(block, cst.With) and any(call is one for _, one in context_items(block, file)):
        return block
    return None


def _is_rewritten(block: cst.With, rule: str, file: File) -> bool:
    call = context_items(block, file)[0][1]
    is_left_alone = file.suppressions.ignored(rule, call) or file.suppressions.gated(call) is not None
    return not is_left_alone and problem_of(block, file) is None
