"""The text of a module and of its edited versions."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.tree import Layout

_LAST_NEWLINE = re.compile(r"(\r\n?|\n)\Z")


class Printer:
    """Prints edited versions of a module; a statement at its top level that was printed before comes from memory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # A statement is kept with its text, so that its id stays its own.
        self._texts: dict[int, tuple[cst.CSTNode, str]] = {}

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
            known = self._texts[id(node)] = (node, self._layout.printed_at_top(node))
        return known[1]
