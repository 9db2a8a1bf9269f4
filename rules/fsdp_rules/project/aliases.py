"""What the names of one file stand for: imports, other names for FSDP1's class, and partials of it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from fsdp_rules.fsdp1.names import FSDP, canonical, expand
from fsdp_rules.project.gates import statements
from fsdp_rules.project.walking import walk


def text_of(node: ast.AST | None) -> str | None:
    """``a.b.c`` for a name or a chain of attributes (``getattr(a, "b")`` and ``vars(a)["b"]`` too), else None."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif (attribute := _asked(node)) is not None:
            node, name = attribute
            parts.append(name)
        else:
            break
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def _asked(node: ast.AST | None) -> tuple[ast.expr, str] | None:
    """The owner and the attribute that ``getattr(x, "a")``, ``vars(x)["a"]`` or ``x.__dict__["a"]`` asks for."""
    owner: ast.expr | None = None
    name: ast.expr | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        owner, name = (node.args[0], node.args[1]) if len(node.args) > 1 else (None, None)
    elif isinstance(node, ast.Subscript):
        holder, name = node.value, node.slice
        if isinstance(holder, ast.Attribute) and holder.attr == "__dict__":
            owner = holder.value
        elif isinstance(holder, ast.Call) and isinstance(holder.func, ast.Name) and holder.func.id == "vars":
            owner = holder.args[0] if len(holder.args) == 1 else None
    if owner is None or not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    return (owner, name.value) if name.value.isidentifier() else None


class Aliases:
    """The table of one file. ``names`` maps each bound name to what it stands for, fully dotted.

    ``imported`` are the modules and names that the file imports, ``starred`` the modules that it star-imports,
    ``factories`` the names of its ``functools.partial(FSDP, ...)`` objects: what they are called with is sharded.
    ``given`` is what star imports of the tree's modules give. ``imports`` are the local name, target and line of every
    import: of several under one name FSDP1's is in ``names``.
    """

    def __init__(self, tree: ast.Module, module: str, is_package: bool, given: Mapping[str, str] | None = None) -> None:
        self.package = module if is_package else module.rpartition(".")[0]
        self.names: dict[str, str] = {}
        self.imports: list[tuple[str, str, int]] = []
        self.imported: set[str] = set()
        self.starred: set[str] = set()
        self.factories: set[str] = set()
        for node in statements(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    self._bind(bound, alias.name if alias.asname else bound, node.lineno)
                    self.imported.add(alias.name)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        self.names = {**(given or {}), **self.names}
        self._find_classes(tree)
        for node in statements(tree):
            if isinstance(node, ast.Assign) and self.is_factory(node.value):
                self.factories.update(text for target in node.targets if (text := text_of(target)) is not None)

    def dotted(self, node: ast.expr) -> str | None:
        """The fully dotted name of ``node``."""
        text = text_of(node)
        return expand(text, self.names) if text is not None else None

    def known(self, node: ast.expr) -> str | None:
        """FSDP1's own name for ``node``."""
        dotted = self.dotted(node)
        return canonical(dotted) if dotted else None

    def wraps(self, node: ast.Call) -> bool:
        """Whether ``node`` is ``wrap(model)``, ``map(FSDP, models)``, or makes or calls a partial of FSDP1's class."""
        callee = self.dotted(node.func)
        is_mapped = text_of(node.func) == "map" and bool(node.args) and self.known(node.args[0]) == FSDP
        is_called = callee is not None and (canonical(callee) == "wrap" or callee in self.factories)
        return is_mapped or is_called or self.is_factory(node) or self.is_factory(node.func)

    def is_factory(self, node: ast.expr) -> bool:
        """Whether ``node`` is a ``functools.partial(FSDP, ...)``."""
        if not isinstance(node, ast.Call) or not node.args:
            return False
        callee = self.dotted(node.func)
        return callee is not None and callee.rpartition(".")[2] == "partial" and self.known(node.args[0]) == FSDP

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = self.absolute(node.module, node.level)
        for alias in node.names:
            if alias.name == "*":
                self.starred.add(base)
                continue
            self._bind(alias.asname or alias.name, f"{base}.{alias.name}", node.lineno)
            self.imported.add(f"{base}.{alias.name}")

    def _bind(self, name: str, target: str, line: int) -> None:
        self.imports.append((name, target, line))
        if canonical(target) is not None or canonical(self.names.get(name, "")) is None:
            self.names[name] = target

    def absolute(self, module: str | None, level: int) -> str:
        if not level:
            return module or ""
        parts = self.package.split(".") if self.package else []
        kept = parts[: len(parts) - (level - 1)]
        return ".".join([*kept, *([module] if module else [])])

    def _find_classes(self, tree: ast.Module) -> None:
        """Other names that the module gives FSDP1's class, which are then read like those of imports."""
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or len(targets) != 1:
                continue
            target = targets[0]
            if not isinstance(target, ast.Name) or target.id in self.names or self.known(node.value) != FSDP:
                continue
            if _times_bound(tree, target.id) == 1:
                self.names[target.id] = self.dotted(node.value) or ""


def reads(tree: ast.Module) -> frozenset[str]:
    """The names that a file reads or may mean by a text, as in ``__all__``."""
    names = {node.id for node in walk(tree) if isinstance(node, ast.Name)}
    texts = {node.value for node in walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return frozenset(names | {text for text in texts if text.isidentifier()})


def _times_bound(tree: ast.Module, name: str) -> int:
    """How often ``name`` is bound or deleted anywhere in ``tree``, arguments included."""
    return sum(
        (isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.arg) and node.arg == name)
        for node in walk(tree)
    )
