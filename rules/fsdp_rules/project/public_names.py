"""The names that a module binds, and those of them that a star import of the module gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fsdp_rules.project.walking import children, walk

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (*FUNCTIONS, *COMPREHENSIONS, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_PATTERNS = (ast.MatchAs, ast.MatchStar, ast.MatchMapping)
#: What may bind a name, or has names of its own.
_BINDING = frozenset((ast.Name, ast.ExceptHandler, *_IMPORTS, *_PATTERNS, *SCOPES))


@dataclass(frozen=True)
class Public:
    """What a star import of one module gives.

    ``names`` are the names that the module binds, with what each stands for, fully dotted; ``listed`` is its
    ``__all__``, None where it has none or one that is computed.
    """

    names: dict[str, str] = field(default_factory=dict)
    listed: frozenset[str] | None = None

    def gives(self, name: str) -> bool:
        """Whether a star import takes ``name`` where the module has it."""
        return name in self.listed if self.listed is not None else not name.startswith("_")


def public(tree: ast.Module, module: str, aliases: Mapping[str, str]) -> Public:
    """The names of ``module``, whose imported names stand for ``aliases``."""
    imported: set[str] = set()
    own: set[str] = set()
    lists = []
    for name, node in bound(tree):
        (imported if isinstance(node, _IMPORTS) else own).add(name)
        if name == "__all__":
            lists.append(node)
    names = {name: aliases.get(name, name) for name in imported - own}
    names.update({name: f"{module}.{name}" for name in own})
    return Public(names, _listed(tree, lists[0]) if len(lists) == 1 else None)


def bound(scope: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names that the body of a module, class, function or comprehension binds, each with what binds it."""
    if isinstance(scope, FUNCTIONS):
        arguments = scope.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        yield from ((entry.arg, entry) for entry in given if entry is not None)
    pending = list(children(scope))
    while pending:
        node = pending.pop()
        if type(node) not in _BINDING:
            pending += children(node)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node
        elif isinstance(node, _IMPORTS):
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest, node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        if not isinstance(node, SCOPES):
            pending += children(node)


def _listed(tree: ast.Module, target: ast.AST) -> frozenset[str] | None:
    """The names of the one ``__all__``, if it is written out and no method changes it."""
    value: ast.AST | None = None
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and target in targets:
            value = statement.value
    for node in walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "__all__":
            return None
    entries = value.elts if isinstance(value, ast.List | ast.Tuple) else [None]
    names = [entry.value for entry in entries if isinstance(entry, ast.Constant) and isinstance(entry.value, str)]
    return frozenset(names) if len(names) == len(entries) else None
