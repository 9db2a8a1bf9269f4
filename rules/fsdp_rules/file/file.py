"""One parsed file, with everything that rules ask of it: names, scopes, parents, positions, assignments."""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import libcst as cst

from fsdp_rules.file.ignore_comments import IgnoreComments, ignore_comments
from fsdp_rules.file.shadowed import shadowed
from fsdp_rules.file.tree import Layout, Printer, Span
from fsdp_rules.fsdp1.names import canonical, expand
from fsdp_rules.project.gates import gated_lines, statements
from fsdp_rules.project.project import Project
from fsdp_rules.settings import Settings

Node = TypeVar("Node", bound=cst.CSTNode)
SCOPES = (cst.FunctionDef, cst.ClassDef)
COMPOUND = (cst.If, cst.For, cst.While, cst.Try, cst.TryStar, cst.With, cst.FunctionDef, cst.ClassDef, cst.Match)


@dataclass(frozen=True, eq=False)
class Binding:
    """One binding of a plain name: its value where it is a simple assignment, else None."""

    statement: cst.CSTNode
    value: cst.BaseExpression | None


def dotted(node: cst.CSTNode) -> str | None:
    """``a.b.c`` for a name or a chain of attributes, else None."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    return ".".join([node.value, *reversed(parts)])


class File:
    """A parsed file and its facts. ``path`` is as the user named it, with forward slashes; ``tree`` is its ``ast``."""

    def __init__(self, source: str, tree: ast.Module, path: str, project: Project, settings: Settings) -> None:
        self.path = path
        self.project = project
        self.settings = settings
        self.text = source
        self.tree = tree
        self.module = cst.parse_module(source)
        self._layout = Layout(self.module)
        self._printer = Printer(self._layout)
        self._resolved: dict[int, str | None] = {}
        self._scopes: dict[int, str] = {}
        self.wanted_imports: dict[str, str] = {}

    # Places

    def nodes(self, kind: type[Node]) -> list[Node]:
        """All nodes of exactly the type ``kind``, in the order of the text."""
        return self._layout.nodes(kind)

    def inside(self, node: cst.CSTNode, kind: type[Node]) -> list[Node]:
        """The nodes of exactly the type ``kind`` in ``node``, itself included, in the order of the text."""
        return self._layout.inside(node, kind)

    @property
    def prints_back(self) -> bool:
        """Whether the tree prints as the text that it was parsed from."""
        return self._layout.code == self.text

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node that ``node`` stands in, None for the module."""
        return self._layout.parent(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """All nodes around ``node``, innermost first."""
        return self._layout.ancestors(node)

    def span(self, node: cst.CSTNode) -> Span:
        """Where ``node`` stands: lines from 1, columns from 0."""
        return self._layout.span(node)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The small or compound statement that ``node`` belongs to, ``node`` itself included."""
        current: cst.CSTNode | None = node
        while current is not None:
            if isinstance(current, cst.BaseSmallStatement | cst.BaseCompoundStatement):
                return current
            current = self.parent(current)
        return self.module

    def block(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        """The small and compound statements of the block that ``statement`` stands in, in order."""
        owner = self.parent(statement)
        if isinstance(owner, cst.SimpleStatementLine):
            owner = self.parent(owner)
        body = getattr(owner, "body", ())
        found: list[cst.CSTNode] = []
        for entry in body if isinstance(body, list | tuple) else ():
            found.extend(entry.body if isinstance(entry, cst.SimpleStatementLine) else [entry])
        return found

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The innermost function around ``node``."""
        return next((entry for entry in self.ancestors(node) if isinstance(entry, cst.FunctionDef)), None)

    def scope(self, node: cst.CSTNode) -> str:
        """The qualified name of the functions and classes around ``node``, "" at module level."""
        owner = next((entry for entry in self.ancestors(node) if type(entry) in SCOPES), None)
        if owner is None:
            return ""
        known = self._scopes.get(id(owner))
        if known is None:
            name = cst.ensure_type(getattr(owner, "name", None), cst.Name).value
            known = self._scopes[id(owner)] = f"{self.scope(owner)}.{name}".lstrip(".")
        return known

    def code(self, node: cst.CSTNode) -> str:
        """The source text of ``node`` as it stands in the file."""
        return self._layout.printed(node).strip()

    def print(self, module: cst.Module) -> str:
        """The text of ``module``, an edited version of this file's."""
        return self._printer.code(module)

    def print_statement(self, statement: cst.BaseStatement) -> str:
        """The text of a statement at the top level of an edited version of this file."""
        return self._printer.text(statement)

    # Names

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported local name stands for, imports inside functions included."""
        return self.project.aliases(self.path)

    def resolved(self, node: cst.CSTNode) -> str | None:
        """The fully dotted name behind a name or attribute chain, re-exports of the project followed."""
        key = id(node)
        if key in self._resolved:
            return self._resolved[key]
        text = dotted(node)
        if text is None or text.partition(".")[0] not in self.aliases:
            full = None
        else:
            full = expand(text, self.aliases)
            full = full if full.startswith("torch.") else self.project.resolve(full)
        if self._layout.has(node):
            self._resolved[key] = full
        return full

    def fsdp1(self, node: cst.CSTNode) -> str | None:
        """FSDP1's canonical name behind a name or attribute chain (``ShardingStrategy.NO_SHARD``), or None."""
        full = self.resolved(node)
        return canonical(full) if full is not None else None

    def calls(self, node: cst.CSTNode, *names: str) -> bool:
        """Whether ``node`` is a call of one of the FSDP1 ``names`` or of one of these fully dotted names."""
        if not isinstance(node, cst.Call):
            return False
        full = self.resolved(node.func)
        return full is not None and (full in names or canonical(full) in names)

    def ref(self, full: str) -> str:
        """How this file spells the fully dotted name ``full``; an import is noted where it needs one.

        The note becomes an import only if the name really stands in the output.
        """
        best = ""
        spelled = ""
        for local, target in self.aliases.items():
            rest = full[len(target) :]
            if (
                local in self._shadowed
                or not (rest == "" or rest.startswith("."))
                or not full.startswith(target)
                or len(target) <= len(best)
            ):
                continue
            if full.startswith("torch.distributed.") and full.count(".") > 2 and rest.count(".") > 1:
                continue
            best, spelled = target, local + rest
        if spelled:
            self.wanted_imports.setdefault(spelled.partition(".")[0], "")
            return spelled
        package = full.partition(".")[0]
        near_torch = full.count(".") <= 3 and not full.startswith("torch.distributed.")
        if not self._means_another(package, package) and (package != "torch" or near_torch):
            self.wanted_imports[package] = f"import {package}"
            return full
        module, _, name = full.rpartition(".")
        if full.startswith("torch.distributed.") and full.count(".") == 2 and not self._means_another("dist", module):
            self.wanted_imports["dist"] = "import torch.distributed as dist"
            return f"dist.{name}"
        local = name
        while self._means_another(local, full):
            local = f"torch_{local}" if package == "torch" and local == name else f"{local}_"
        self.wanted_imports[local] = f"from {module} import {name}" + (f" as {local}" if local != name else "")
        return local

    def _means_another(self, local: str, full: str) -> bool:
        return local in self._shadowed or self.aliases.get(local, full) != full

    @cached_property
    def _shadowed(self) -> frozenset[str]:
        return shadowed(self.tree, self.aliases)

    def fresh(self, node: cst.CSTNode, *candidates: str) -> str:
        """The first of ``candidates`` that means nothing yet where ``node`` stands."""
        taken = self._taken(node)
        for candidate in candidates:
            if candidate not in taken:
                return candidate
        return candidates[-1] + "_"

    def _taken(self, node: cst.CSTNode) -> frozenset[str]:
        outermost = [entry for entry in self.ancestors(node) if isinstance(entry, cst.FunctionDef)]
        text = textwrap.dedent(self.module.code_for_node(outermost[-1])) if outermost else self.text
        return self._module_names | _identifiers(text)

    @cached_property
    def _module_names(self) -> frozenset[str]:
        names = {name for scope, name in self.bindings if not scope}
        names.update(self.aliases)
        for entry in statements(self.tree):
            if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(entry.name)
        return frozenset(names)

    # Values

    @cached_property
    def bindings(self) -> dict[tuple[str, str], list[Binding]]:
        """Every binding of every plain name, by (scope, name)."""
        return _Bindings(self).found

    def binding(self, name: cst.BaseExpression) -> Binding | None:
        """The one simple assignment that gives a plain name its value, or None when there is none or more than one."""
        if not isinstance(name, cst.Name):
            return None
        scope = self.scope(name)
        while True:
            found = self.bindings.get((scope, name.value))
            if found:
                return found[0] if len(found) == 1 and found[0].value is not None else None
            if not scope:
                return None
            scope = scope.rpartition(".")[0]

    def value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """``node``, or what it was assigned from where that is certain (through several names)."""
        seen = 0
        while isinstance(node, cst.Name) and seen < 8:
            found = self.binding(node)
            if found is None or found.value is None:
                return node
            node = found.value
            seen += 1
        return node

    def values(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Everything that a plain name is assigned in its scope, or [] when something else binds it too."""
        if not isinstance(node, cst.Name):
            return [node]
        scope = self.scope(node)
        while True:
            found = self.bindings.get((scope, node.value))
            if found:
                values = [binding.value for binding in found if binding.value is not None]
                return values if len(values) == len(found) else []
            if not scope:
                return []
            scope = scope.rpartition(".")[0]

    def uses(self, name: str) -> list[cst.Name]:
        """All places where the plain name ``name`` is read."""
        return self._uses.get(name, [])

    @cached_property
    def _uses(self) -> dict[str, list[cst.Name]]:
        found: dict[str, list[cst.Name]] = defaultdict(list)
        for node in self.nodes(cst.Name):
            if self._is_read(node):
                found[node.value].append(node)
        return found

    def _is_read(self, node: cst.Name) -> bool:
        parent = self.parent(node)
        if isinstance(parent, cst.AssignTarget | cst.Param | cst.ImportAlias | cst.AsName | cst.NameItem):
            return False
        if isinstance(parent, cst.Attribute):
            return parent.attr is not node
        if isinstance(parent, cst.Arg):
            return parent.keyword is not node
        if isinstance(parent, cst.FunctionDef | cst.ClassDef):
            return parent.name is not node
        return not (isinstance(parent, cst.AnnAssign) and parent.target is node)

    def gated(self, node: cst.CSTNode) -> bool | None:
        """Whether ``node`` is left alone for its FSDP2 twin (True) or a version gate (False); None: it is not."""
        return True if self.left_alone else self._gated_lines.get(self.span(node).line)

    @property
    def left_alone(self) -> bool:
        """Whether every FSDP1 model of the project has its FSDP2 twin, so that nothing is to be rewritten."""
        return "gated" in self.project.flags and "fsdp1" not in self.project.flags

    @property
    def may_trap(self) -> bool:
        """Whether what FSDP1 left behind, in code or checkpoints, is to be told of in this project."""
        return "fsdp1" in self.project.flags or (self.settings.traps and "fsdp2" in self.project.flags)

    @cached_property
    def _gated_lines(self) -> dict[int, bool]:
        return gated_lines(self.tree, self.text)

    def ignored(self, rule: str, node: cst.CSTNode) -> bool:
        """Whether an ``# fsdp-migrate: ignore[...]`` comment on the lines of ``node``'s start silences ``rule``."""
        lines = {self.span(node).line, self.span(self.statement(node)).line}
        for line in lines:
            rules = self._ignores.silenced.get(line)
            if rules is not None and (not rules or rule in rules):
                return True
        return False

    @property
    def wrong_ignores(self) -> Mapping[int, str]:
        """The comments that are meant to silence rules and do not, by line."""
        return self._ignores.wrong

    @cached_property
    def _ignores(self) -> IgnoreComments:
        return ignore_comments(self.text)


def _identifiers(text: str) -> frozenset[str]:
    """The names that ``text`` uses, those that live inside its lambdas alone left out."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Lambda):
            own = {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
            names.update(name for name in _identifiers(ast.unparse(node.body)) if name not in own)
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return frozenset(names)


class _Bindings:
    """Every binding of every plain name, by (scope, name)."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.found: dict[tuple[str, str], list[Binding]] = defaultdict(list)
        for assign in file.nodes(cst.Assign):
            for target in assign.targets:
                self._add(target.target, assign, assign.value)
        for annotated in file.nodes(cst.AnnAssign):
            self._add(annotated.target, annotated, annotated.value)
        for augmented in file.nodes(cst.AugAssign):
            self._add(augmented.target, augmented, None)
        for walrus in file.nodes(cst.NamedExpr):
            self._add(walrus.target, walrus, None)
        for loop in file.nodes(cst.For):
            self._add(loop.target, loop, None)
        for comprehension in file.nodes(cst.CompFor):
            self._add(comprehension.target, comprehension, None)
        for item in file.nodes(cst.WithItem):
            if item.asname is not None:
                self._add(item.asname.name, item, None)
        for parameter in file.nodes(cst.Param):
            self._parameter(parameter)
        for declaration in file.nodes(cst.Global):
            for name in declaration.names:
                self.found[("", name.name.value)].append(Binding(declaration, None))
                self.found[(file.scope(declaration), name.name.value)].append(Binding(declaration, None))

    def _add(self, target: cst.CSTNode, statement: cst.CSTNode, value: cst.BaseExpression | None) -> None:
        if isinstance(target, cst.Name):
            self.found[(self.file.scope(target), target.value)].append(Binding(statement, value))
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._add(element.value, statement, None)
        elif isinstance(target, cst.Subscript | cst.StarredElement):
            self._add(target.value, statement, None)

    def _parameter(self, node: cst.Param) -> None:
        owner = next(entry for entry in self.file.ancestors(node) if isinstance(entry, cst.FunctionDef | cst.Lambda))
        if isinstance(owner, cst.FunctionDef):
            outer = self.file.scope(owner)
            scope = f"{outer}.{owner.name.value}" if outer else owner.name.value
            self.found[(scope, node.name.value)].append(Binding(node, None))
