"""Which lines a rule leaves alone: a comment says so, or a gate for another torch or another FSDP stands around."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cached_property

import libcst as cst

from fsdp_rules.file.tree import Layout
from fsdp_rules.project.gates import gated_lines
from fsdp_rules.project.ignore_comments import IgnoreComments, ignore_comments
from fsdp_rules.project.project import Project
from fsdp_rules.project.twins import TEST


class Suppressions:
    """The comments and gates of one file."""

    def __init__(self, path: str, text: str, tree: ast.Module, layout: Layout, project: Project) -> None:
        self._path = path
        self._text = text
        self._tree = tree
        self._layout = layout
        self._project = project

    def gated(self, node: cst.CSTNode) -> bool | None:
        """Whether ``node`` is left alone for its FSDP2 twin (True) or a version gate (False); None: it is not."""
        line = self._layout.span(node).line
        # A test of both is not half migrated.
        is_whole = self._project.is_left_alone or (TEST.search(self._path) and True in self._gated_lines.values())
        if is_whole or self._project.twins.has(self._path, line):
            return True
        return self._gated_lines.get(line)

    def has_branch(self, node: cst.CSTNode) -> bool:
        """Whether a branch of the same file shards with FSDP2 what ``node`` wraps."""
        return self._gated_lines.get(self._layout.span(node).line) is True

    @cached_property
    def _gated_lines(self) -> dict[int, bool]:
        names = {
            local
            for local, full in self._project.aliases(self._path).items()
            if any(f".{known}".endswith(f".{self._project.resolve(full)}") for known in self._project.fsdp2)
        }
        return gated_lines(self._tree, self._text, names)

    def ignored(self, rule: str, node: cst.CSTNode) -> bool:
        """Whether an ``# fsdp-migrate: ignore[...]`` comment on the lines of ``node``'s start silences ``rule``."""
        lines = {self._layout.span(node).line, self._layout.span(self._layout.statement(node)).line}
        for line in lines:
            rules = self._ignores.silenced.get(line)
            if rules is not None and (not rules or rule in rules):
                return True
        return False

    @property
    def wrong(self) -> Mapping[int, str]:
        """The comments that are meant to silence rules and do not, by line."""
        return self._ignores.wrong

    @cached_property
    def _ignores(self) -> IgnoreComments:
        return ignore_comments(self._text)
