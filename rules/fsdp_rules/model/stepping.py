"""What may change the parameters, and the state of their optimizer, between two places of a function."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.passes import end_of, pass_ends, start_of


def may_step_between(first: cst.CSTNode, use: cst.CSTNode, file: File) -> bool:
    """Whether a pass, or a step of an optimizer, may run after ``first`` and before ``use`` reads what it gave.

    In a loop, what ``use`` comes before, or what a test that is not around it may leave out, is read a round later.
    """
    owner, start, end = file.function(use) or file.module, end_of(first, file), start_of(file.statement(use), file)
    around = [*file.ancestors(use)]
    tests = {file.code(entry.test) for entry in around if isinstance(entry, cst.If)}
    is_left_out = False
    for entry in file.ancestors(first):
        if entry is owner:
            break
        if isinstance(entry, cst.If) and entry not in around:
            is_left_out |= file.code(entry.test) not in tests
        elif isinstance(entry, cst.For | cst.While):
            if entry not in around:
                start = min(start, start_of(entry, file))
            elif end < start or is_left_out:
                start, end = start_of(entry, file), end_of(entry, file)
    return any(start < at <= end for at in _advances(owner, file))


@once
def _advances(owner: cst.CSTNode, file: File) -> list[tuple[int, int]]:
    """Where the passes of a function end, and its calls of an optimizer's ``step``."""
    steps = [
        node
        for node in file.inside(owner, cst.Call)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "step"
    ]
    return [
        *pass_ends(owner, file),
        *(end_of(node, file) for node in steps if (file.function(node) or file.module) is owner),
    ]
