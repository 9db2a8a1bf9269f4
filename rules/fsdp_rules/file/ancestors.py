"""The nodes around a node, each with the part of it that the node stands in."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.file import File


def branches(node: cst.CSTNode, file: File) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Each node around ``node``, innermost first, with its child that ``node`` is or is inside of."""
    child = node
    for ancestor in file.ancestors(node):
        yield ancestor, child
        child = ancestor
