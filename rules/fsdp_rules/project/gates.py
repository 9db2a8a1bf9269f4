"""Branches for another torch or another FSDP: code that already has its FSDP2 twin is left alone."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Collection, Iterator

from fsdp_rules.project.walking import walk

#: What a test says that chooses between versions, of torch or of FSDP.
VERSION_TEST = re.compile(r"__version__|\bversion\b|fsdp_?version|fsdp_?2|is_torch_|torch_version", re.IGNORECASE)
#: Where statements, or what holds statements, stand in a node, in the order of its fields.
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
NEWLINE = re.compile(r"\r\n?|\n")
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
FSDP1_CODE = re.compile(r"\b(FSDP|FullyShardedDataParallel)\(")
#: A library whose functions are called as FSDP2's.
MEGATRON = "megatron_fsdp"
FSDP2_CODE = re.compile(rf"(?<!{MEGATRON}\.)\b(fully_shard|FSDPModule|MixedPrecisionPolicy|apply_fsdp2)\b")


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement of ``tree`` in the order of :func:`ast.walk`, which would go through every expression too."""
    return (node for block in _blocks(tree) for node in block)


def gated_lines(tree: ast.Module, text: str, sharding: Collection[str] = ()) -> dict[int, bool]:
    """The lines in branches of such an ``if``, each with whether FSDP2 code stands in one of its branches.

    ``sharding`` are names of functions that shard with FSDP2. What follows an ``if`` that leaves the block is its other
    branch where FSDP2 code stands in one of the two alone.
    """
    # A form feed ends no line for Python's parser.
    lines = _without_parameters(tree, NEWLINE.split(text))
    found: dict[int, bool] = {}
    names = re.compile(r"\b(" + "|".join(map(re.escape, sorted(sharding))) + r")\b") if sharding else None

    others = _of_megatron(tree)

    def has(part: str) -> bool:
        own = any(found[0] not in others for found in FSDP2_CODE.finditer(part))
        return own or (names is not None and names.search(part) is not None)

    for block in _blocks(tree):
        for index, node in enumerate(block):
            if not isinstance(node, ast.If):
                continue
            leaves = not node.orelse and isinstance(node.body[-1], _LEAVING)
            rest = block[index + 1 :] if leaves else node.orelse
            body, orelse = _text(node.body, lines), _text(rest, lines)
            twin = has(body) or has(orelse)
            chooses = has(body) != has(orelse) and bool(orelse)
            chooses = chooses and (not leaves or FSDP1_CODE.search(body + orelse) is not None)
            if chooses or VERSION_TEST.search(_text([node.test], lines)):
                last = rest[-1] if leaves and chooses else node
                for line in range(node.body[0].lineno, (last.end_lineno or node.lineno) + 1):
                    found[line] = found.get(line, False) or twin
    return found


def sharding_functions(tree: ast.Module) -> frozenset[str]:
    """The names of the functions of a file, outside of classes, that call ``fully_shard``."""
    if "fully_shard" in _of_megatron(tree):
        return frozenset()
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(call, ast.Call)
            and (getattr(call.func, "id", None) or getattr(call.func, "attr", None)) == "fully_shard"
            for call in walk(node)
        )
    )


def _of_megatron(tree: ast.Module) -> frozenset[str]:
    """The names that the file imports from Megatron's library alone."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            of = node.module.partition(".")[0] == MEGATRON
            found[of] |= {alias.asname or alias.name for alias in node.names}
    return frozenset(found[True] - found[False])


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Every list of statements of ``tree``."""
    pending: deque[ast.AST] = deque([tree])
    while pending:
        node = pending.popleft()
        for field in _BLOCKS:
            block = getattr(node, field, ())
            if block and isinstance(block[0], ast.stmt):
                yield block
            pending.extend(block)


def _without_parameters(tree: ast.Module, lines: list[str]) -> list[str]:
    """``lines`` without the parameters that only have a name of FSDP2's."""
    if not any(FSDP2_CODE.search(line) for line in lines):
        return lines
    lines = [*lines]
    for node in walk(tree):
        if isinstance(node, ast.arg) and FSDP2_CODE.fullmatch(node.arg) and node.lineno <= len(lines):
            line = lines[node.lineno - 1].encode()
            start, end = node.col_offset, node.col_offset + len(node.arg)
            lines[node.lineno - 1] = (line[:start] + b" " * (end - start) + line[end:]).decode("utf-8", "replace")
    return lines


def _text(nodes: list[ast.stmt] | list[ast.expr], lines: list[str]) -> str:
    if not nodes:
        return ""
    return "\n".join(lines[nodes[0].lineno - 1 : nodes[-1].end_lineno])
