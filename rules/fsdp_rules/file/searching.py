"""Nodes of a kind in any tree, edited ones included."""

from __future__ import annotations

from typing import Generic, TypeVar

import libcst as cst

from fsdp_rules.file.tree import Printing

Node = TypeVar("Node", bound=cst.CSTNode)


def find(node: cst.CSTNode, kind: type[Node]) -> list[Node]:
    """The nodes of exactly the type ``kind`` in ``node``, itself included, in the order of the text.

    For any tree, edited ones included; :meth:`Layout.inside` need not walk.
    """
    finder: _Finder[Node] = _Finder(kind)
    node._codegen(finder)
    return finder.found


class _Finder(Printing, Generic[Node]):
    def __init__(self, kind: type[Node]) -> None:
        super().__init__(default_indent="", default_newline="")
        self.kind = kind
        self.found: list[Node] = []

    def before_codegen(self, node: cst.CSTNode) -> None:
        if type(node) is self.kind:
            self.found.append(node)
