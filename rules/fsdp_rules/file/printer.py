"""The text of a module and of its edited versions."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from itertools import islice

import libcst as cst

from fsdp_rules.file.tree import Layout

_LAST_NEWLINE = re.compile(r"(\r\n?|\n)\Z")


class Printer:
    """Prints edited versions of a module; a statement at its top level that was printed before comes from memory."""

    def __init__(self, layout: Layout, tree: ast.Module | None = None) -> None:
        """``tree`` is what the module of ``layout`` is to Python."""
        self._layout = layout
        self._tree = tree
        # A statement is kept with its text, so that its id stays its own.
        self._texts: dict[int, tuple[cst.CSTNode, str]] = {}
        self._trees: dict[str, ast.Module] = {}

    def code(self, module: cst.Module) -> str:
        """What ``module.code`` is, for the module of the layout and for every edited version of it."""
        text = "".join(map(self.text, (*module.header, *module.body, *module.footer)))
        if module.has_trailing_newline:
            return text or module.default_newline
        return _LAST_NEWLINE.sub("", text)

    def text(self, node: cst.CSTNode) -> str:
        """The lines of a statement (or of an empty line) at the top level."""
        known = self._texts.get(id(node))
        if known is None:
            known = self._texts[id(node)] = (node, self._layout.printed(node, at_top=True))
        return known[1]

    def parsed(self, statement: cst.CSTNode) -> ast.Module:
        """What :meth:`text` of a statement is to Python; one that no edit has changed was parsed with its file."""
        text = self.text(statement)
        known = self._trees.get(text)
        if known is None:
            own = self._own_trees.get(id(statement))
            known = self._trees[text] = ast.parse(text) if own is None else own
        return known

    @cached_property
    def _own_trees(self) -> dict[int, ast.Module]:
        """The statements at the top level of the module that is laid out."""
        body = self._layout.module.body
        sizes = [len(entry.body) if isinstance(entry, cst.SimpleStatementLine) else 1 for entry in body]
        if self._tree is None or sum(sizes) != len(self._tree.body):
            return {}
        nodes = iter(self._tree.body)
        return {
            id(entry): ast.Module(body=[*islice(nodes, size)], type_ignores=[])
            for entry, size in zip(body, sizes, strict=True)
        }
