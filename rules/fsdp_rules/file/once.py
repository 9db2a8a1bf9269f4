"""Answers about a node that several rules ask for: worked out at the first question, and known to all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import libcst as cst

from fsdp_rules.file.file import File

Node = TypeVar("Node", bound=cst.CSTNode)
Value = TypeVar("Value")


def once(compute: Callable[[Node, File], Value]) -> Callable[[Node, File], Value]:
    """``compute``, called at most once for each node of a file."""

    @wraps(compute)
    def answer(node: Node, file: File) -> Value:
        known: dict[cst.CSTNode, Any] = file.answers.setdefault(compute, {})
        if node not in known:
            known[node] = compute(node, file)
        value: Value = known[node]
        return value

    return answer
