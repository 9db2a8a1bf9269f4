"""Names that a file gives a meaning of its own, so that an import of the same name would not be what is read there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from fsdp_rules.project.walking import walk

_BINDING = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg, ast.Name, ast.Assign, ast.Import, ast.ImportFrom),
    *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
)


def shadowed(tree: ast.Module, aliases: Mapping[str, str]) -> frozenset[str]:
    """The names that ``tree`` binds anywhere by something else than the import that ``aliases`` has for them.

    A parameter called ``init_device_mesh`` counts, and a function of the project's own called ``fully_shard``: what the
    output puts inside them would call them, and not torch.
    """
    nodes = [node for node in walk(tree) if isinstance(node, _BINDING)]
    imported = _last_imports(nodes)
    sure = {id(statement) for statement in tree.body}
    missing = {
        id(target)
        for node in nodes
        for target in _set_to_none(node)
        if isinstance(target, ast.Name)
        and target.id in aliases
        and (id(node) not in sure or target.lineno < imported.get(target.id, 0))
    }
    return frozenset(
        name for name, target in _bound(nodes, missing) if target is None or aliases.get(name, target) != target
    )


def _last_imports(nodes: Iterable[ast.AST]) -> dict[str, int]:
    """The line of the last import of each name."""
    found: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = max(found.get(name, 0), node.lineno)
    return found


def _set_to_none(node: ast.AST) -> list[ast.expr]:
    """The targets of ``name = None``, as a file has it above or beside an import that may fail."""
    is_none = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None
    return node.targets if isinstance(node, ast.Assign) and is_none else []


def _bound(nodes: Iterable[ast.AST], missing: set[int]) -> Iterator[tuple[str, str | None]]:
    """Every name that is bound, with what it imports; None where it is no import."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, None
            case ast.arg():
                yield node.arg, None
            case ast.Name(ctx=ast.Store() | ast.Del()) if id(node) not in missing:
                yield node.id, None
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, None
            case ast.MatchMapping(rest=str(name)):
                yield name, None
            case ast.Import():
                for alias in node.names:
                    local = alias.asname or alias.name.partition(".")[0]
                    yield local, alias.name if alias.asname else local
            case ast.ImportFrom():
                for alias in node.names:
                    # What a relative import names depends on the package; it is never torch.
                    module = "." * node.level + (node.module or "")
                    yield alias.asname or alias.name, f"{module}.{alias.name}" if not node.level else f"{module}:"
