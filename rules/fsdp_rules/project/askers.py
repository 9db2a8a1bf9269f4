"""A project's own functions that say whether what they are given is of FSDP1's class, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.project.aliases import Aliases


def askers_of(files: Iterable[tuple[str, Iterable[str], Iterable[str]]]) -> frozenset[str]:
    """The whole dotted names of those whose last name no other function of the project has.

    ``files`` are the module, the functions and the askers of each.
    """
    dotted: set[str] = set()
    others: set[str] = set()
    for module, functions, askers in files:
        asking = frozenset(askers)
        dotted.update(f"{module}.{name}" for name in asking)
        others.update(name.rpartition(".")[2] for name in functions if name not in asking)
    return frozenset(name for name in dotted if name.rpartition(".")[2] not in others)


def is_asker(dotted: str, askers: frozenset[str]) -> bool:
    """Whether ``dotted``, a name or an import path and a name, is one of ``askers``."""
    return any(f".{name}".endswith(f".{dotted}") for name in askers)


def asks_for_fsdp1(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, aliases: Aliases) -> bool:
    """Whether ``node`` returns ``isinstance(given, FSDP)`` of its last parameter."""
    value = node.body if isinstance(node, ast.Lambda) else _returned(node)
    given = [*node.args.posonlyargs, *node.args.args]
    if not given or not isinstance(value, ast.Call) or len(value.args) != 2 or value.keywords:
        return False
    function, (subject, of) = value.func, value.args
    classes = of.elts if isinstance(of, ast.Tuple) else [of]
    return (
        isinstance(function, ast.Name)
        and function.id == "isinstance"
        and isinstance(subject, ast.Name)
        and subject.id == given[-1].arg
        and bool(classes)
        and all(aliases.known(entry) == FSDP for entry in classes)
    )


def _returned(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    """What a function returns that does nothing else but import."""
    rest = [line for line in node.body if not isinstance(line, ast.Import | ast.ImportFrom)]
    if rest and isinstance(rest[0], ast.Expr) and isinstance(rest[0].value, ast.Constant):
        del rest[0]
    return rest[0].value if len(rest) == 1 and isinstance(rest[0], ast.Return) else None
