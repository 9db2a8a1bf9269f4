"""One parsed file, with everything that rules ask of it: names, scopes, parents, positions, assignments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import libcst as cst

from fsdp_rules.file.bindings import Binding, Bindings
from fsdp_rules.file.objects import Objects
from fsdp_rules.file.printer import Printer
from fsdp_rules.file.references import References
from fsdp_rules.file.suppressions import Suppressions
from fsdp_rules.file.tree import Layout, Span, dotted
from fsdp_rules.project.project import Project
from fsdp_rules.project.seen import seen_from
from fsdp_rules.settings import Settings

__all__ = ["Binding", "File", "dotted"]

Node = TypeVar("Node", bound=cst.CSTNode)


class File:
    """A parsed file and its facts. ``path`` is as the user named it, with forward slashes; ``tree`` is its ``ast``.

    A face for the rules: what it answers is worked out by its ``layout`` (places in the text), its ``references``
    (dotted names), their bindings (plain names) and ``objects`` (what these hold).
    """

    def __init__(self, source: str, tree: ast.Module, path: str, project: Project, settings: Settings) -> None:
        self.path = path
        # What other programs say by bare names says nothing here.
        self.project = project = seen_from(project, path)
        self.settings = settings
        #: What a traced run showed of this file; the engine also asks the rules without what it denies.
        self.observed = project.observed.files.get(path)
        self.text = source
        self.tree = tree
        self.module = cst.parse_module(source)
        self.layout = Layout(self.module)
        self.printer = Printer(self.layout, tree)
        self.bindings = Bindings(self.layout)
        self.references = References(path, tree, self.layout, self.bindings, project)
        self.objects = Objects(path, tree, self.layout, self.bindings, project)
        self.suppressions = Suppressions(path, source, tree, self.layout, project)
        # What `once` keeps: by the function that works it out, then by node.
        self.answers: dict[Callable[..., Any], dict[cst.CSTNode, Any]] = {}

    def nodes(self, kind: type[Node]) -> list[Node]:
        """All nodes of exactly the type ``kind``, in the order of the text."""
        return self.layout.nodes(kind)

    def inside(self, node: cst.CSTNode, kind: type[Node]) -> list[Node]:
        """The nodes of exactly the type ``kind`` in ``node``, itself included, in the order of the text."""
        return self.layout.inside(node, kind)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node that ``node`` stands in, None for the module."""
        return self.layout.parent(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """All nodes around ``node``, innermost first."""
        return self.layout.ancestors(node)

    def span(self, node: cst.CSTNode) -> Span:
        """Where ``node`` stands: lines from 1, columns from 0."""
        return self.layout.span(node)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The small or compound statement that ``node`` belongs to, ``node`` itself included."""
        return self.layout.statement(node)

    def block(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        """The small and compound statements of the block that ``statement`` stands in, in order."""
        return self.layout.block(statement)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The innermost function around ``node``."""
        return self.layout.function(node)

    def scope(self, node: cst.CSTNode) -> str:
        """The qualified name of the functions and classes around ``node``, "" at module level."""
        return self.layout.scope(node)

    def code(self, node: cst.CSTNode) -> str:
        """The source text of ``node`` as it stands in the file."""
        return self.layout.printed(node).strip()

    @property
    def aliases(self) -> dict[str, str]:
        """What each imported local name stands for, imports inside functions included."""
        return self.references.aliases

    def resolved(self, node: cst.CSTNode) -> str | None:
        """The fully dotted name behind ``node``: see :meth:`References.resolved`."""
        return self.references.resolved(node)

    def fsdp1(self, node: cst.CSTNode) -> str | None:
        """FSDP1's canonical name behind a name or attribute chain (``ShardingStrategy.NO_SHARD``), or None."""
        return self.references.fsdp1(node)

    def calls(self, node: cst.CSTNode, *names: str) -> bool:
        """Whether ``node`` is a call of one of the FSDP1 ``names`` or of one of these fully dotted names."""
        return self.references.calls(node, *names)

    def ref(self, full: str, *, everywhere: bool = False, by_name: bool = False) -> str:
        """How this file spells the fully dotted name ``full`` here, or ``everywhere``; notes an import it needs."""
        return self.references.ref(full, everywhere=everywhere, by_name=by_name)

    def fresh(self, node: cst.CSTNode, *candidates: str) -> str:
        """The first of ``candidates`` that means nothing yet where ``node`` stands."""
        return self.references.fresh(node, *candidates)

    def binding(self, name: cst.BaseExpression) -> Binding | None:
        """The one simple assignment that gives a plain name its value, or None when there is none or more than one."""
        return self.bindings.binding(name)

    def value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """``node``, or what it was assigned from where that is certain and nothing changes it before (several names).

        ``file.objects.origin`` is what made it, for questions about what it may hold.
        """
        return self.objects.value(node)

    def values(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Everything that a plain name is assigned in its scope, or [] when something else binds or changes it."""
        return self.objects.values(node)

    def uses(self, name: str) -> list[cst.Name]:
        """All places where the plain name ``name`` is read."""
        return self.bindings.uses(name)
