"""What the plain names of a file are bound to, where, and what has surely run before a place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from fsdp_rules.file.reads import is_read
from fsdp_rules.file.tree import Layout


@dataclass(frozen=True, eq=False)
class Binding:
    """One binding of a plain name: its value where it is a simple assignment, else None."""

    statement: cst.CSTNode
    value: cst.BaseExpression | None


class Bindings:
    """Every binding of every plain name, by (scope, name)."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.found: dict[tuple[str, str], list[Binding]] = defaultdict(list)
        for assign in layout.nodes(cst.Assign):
            for target in assign.targets:
                self._add(target.target, assign, assign.value)
        for annotated in layout.nodes(cst.AnnAssign):
            self._add(annotated.target, annotated, annotated.value)
        for augmented in layout.nodes(cst.AugAssign):
            self._add(augmented.target, augmented, None)
        for walrus in layout.nodes(cst.NamedExpr):
            self._add(walrus.target, walrus, None)
        for loop in layout.nodes(cst.For):
            self._add(loop.target, loop, None)
        for comprehension in layout.nodes(cst.CompFor):
            self._add(comprehension.target, comprehension, None)
        for item in layout.nodes(cst.WithItem):
            if item.asname is not None:
                self._add(item.asname.name, item, None)
        for parameter in layout.nodes(cst.Param):
            self._parameter(parameter)
        for declaration in layout.nodes(cst.Global):
            for name in declaration.names:
                self.found[("", name.name.value)].append(Binding(declaration, None))
                self.found[(layout.scope(declaration), name.name.value)].append(Binding(declaration, None))
        for imported in layout.nodes(cst.ImportFrom):
            self._import(imported)

    def _add(self, target: cst.CSTNode, statement: cst.CSTNode, value: cst.BaseExpression | None) -> None:
        if isinstance(target, cst.Name):
            self.found[(self.layout.scope(target), target.value)].append(Binding(statement, value))
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._add(element.value, statement, None)
        elif isinstance(target, cst.Subscript | cst.StarredElement):
            self._add(target.value, statement, None)

    def _import(self, node: cst.ImportFrom) -> None:
        """An import of a name that is assigned as well, as where the import may fail."""
        for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
            key = (self.layout.scope(node), alias.evaluated_alias or alias.evaluated_name)
            if key in self.found:
                self.found[key].append(Binding(node, None))

    def _parameter(self, node: cst.Param) -> None:
        owner = next(entry for entry in self.layout.ancestors(node) if isinstance(entry, cst.FunctionDef | cst.Lambda))
        if isinstance(owner, cst.FunctionDef):
            outer = self.layout.scope(owner)
            scope = f"{outer}.{owner.name.value}" if outer else owner.name.value
            self.found[(scope, node.name.value)].append(Binding(node, None))

    def binding(self, name: cst.BaseExpression) -> Binding | None:
        """The one simple assignment that gives a plain name its value, or None when there is none or more than one."""
        if not isinstance(name, cst.Name):
            return None
        scope = self.layout.scope(name)
        while True:
            found = self.found.get((scope, name.value))
            if found:
                return found[0] if len(found) == 1 and found[0].value is not None else None
            if not scope:
                return None
            scope = scope.rpartition(".")[0]

    def values(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Everything that a plain name is assigned in its scope, or [] when something else binds it too."""
        if not isinstance(node, cst.Name):
            return [node]
        scope = self.layout.scope(node)
        while True:
            found = self.found.get((scope, node.value))
            if found:
                values = [binding.value for binding in found if binding.value is not None]
                return values if len(values) == len(found) else []
            if not scope:
                return []
            scope = scope.rpartition(".")[0]

    def behind(self, node: cst.BaseExpression) -> Iterator[tuple[cst.CSTNode, str]]:
        """The assignments that a plain name gets its value through, each with the name that it assigns."""
        while isinstance(node, cst.Name):
            found = self.binding(node)
            if found is None or found.value is None:
                return
            yield found.statement, node.value
            node = found.value

    def scope_of(self, name: cst.Name) -> str:
        """The scope that binds ``name`` where it stands; "" for the module, and for what nothing binds."""
        scope = self.layout.scope(name)
        while scope and (scope, name.value) not in self.found:
            scope = scope.rpartition(".")[0]
        return scope

    def uses(self, name: str) -> list[cst.Name]:
        """All places where the plain name ``name`` is read."""
        return self.reads.get(name, [])

    @cached_property
    def reads(self) -> dict[str, list[cst.Name]]:
        """All places where each plain name is read."""
        found: dict[str, list[cst.Name]] = defaultdict(list)
        for node in self.layout.nodes(cst.Name):
            if is_read(node, self.layout):
                found[node.value].append(node)
        return found
