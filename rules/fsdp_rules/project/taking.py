"""Whether a file takes or loads a state outside of the blocks that say what kind of state it is."""

from __future__ import annotations

import ast

from fsdp_rules.project.walking import children

STATES = frozenset({"state_dict", "load_state_dict", "optim_state_dict", "optim_state_dict_to_load"})


def takes_state(tree: ast.Module) -> bool:
    """Whether a call on a state lies outside of every ``with ... state_dict_type(...)`` of the file."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.With | ast.AsyncWith) and any(_is_context(item) for item in node.items):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STATES:
            return True
        pending += children(node)
    return False


def _is_context(item: ast.withitem) -> bool:
    call = item.context_expr
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "state_dict_type"
