"""Branches for another torch or another FSDP: code that already has its FSDP2 twin is left alone."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator

#: What a test says that chooses between versions, of torch or of FSDP.
VERSION_TEST = re.compile(r"__version__|\bversion\b|fsdp_?version|fsdp_?2|is_torch_|torch_version", re.IGNORECASE)
#: Where statements, or what holds statements, stand in a node, in the order of its fields.
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
FSDP2_CODE = re.compile(r"\b(fully_shard|FSDPModule|MixedPrecisionPolicy|apply_fsdp2)\b")


def is_gate(test: str, body: str, orelse: str) -> bool:
    """Whether an ``if`` with these source texts chooses between FSDP1 and FSDP2, or between versions of torch."""
    if VERSION_TEST.search(test):
        return True
    return bool(FSDP2_CODE.search(body)) != bool(FSDP2_CODE.search(orelse)) and bool(orelse)


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement of ``tree`` in the order of :func:`ast.walk`, which would go through every expression too."""
    pending: deque[ast.AST] = deque([tree])
    while pending:
        node = pending.popleft()
        if isinstance(node, ast.stmt):
            yield node
        for field in _BLOCKS:
            pending.extend(getattr(node, field, ()))


def gated_lines(tree: ast.Module, text: str) -> dict[int, bool]:
    """The lines in branches of such an ``if``, each with whether FSDP2 code stands in one of its branches."""
    lines = text.splitlines()
    found: dict[int, bool] = {}
    for node in statements(tree):
        if not isinstance(node, ast.If):
            continue
        body, orelse = _text(node.body, lines), _text(node.orelse, lines)
        if is_gate(_text([node.test], lines), body, orelse):
            twin = bool(FSDP2_CODE.search(body) or FSDP2_CODE.search(orelse))
            for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = found.get(line, False) or twin
    return found


def _text(nodes: list[ast.stmt] | list[ast.expr], lines: list[str]) -> str:
    if not nodes:
        return ""
    return "\n".join(lines[nodes[0].lineno - 1 : nodes[-1].end_lineno])
