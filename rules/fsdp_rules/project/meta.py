"""In which functions of a file the meta device is named."""

from __future__ import annotations

import ast
import re

from fsdp_rules.project.walking import children

#: Names of functions and flags that put modules on the meta device.
WORDS = re.compile(r"^(init_empty_weights|deferred_init)$|meta_(tensor|device|init|model)|(^|_)(on|to|use)_meta(_|$)")

#: What a file that names the meta device has in its bytes.
MAY_NAME_META = re.compile(rb"meta|init_empty|deferred_init")


def meta_scopes(tree: ast.Module) -> frozenset[str]:
    """The functions and classes, by qualified name, in which the meta device is named; "" is the module itself."""
    found: set[str] = set()
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, scope = pending.pop()
        if _names_meta(node):
            found.add(scope)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}".lstrip(".")
        pending += [(child, scope) for child in children(node)]
    return frozenset(found)


def _names_meta(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        words = [keyword.arg or "" for keyword in node.keywords]
        return any(isinstance(entry, ast.Constant) and entry.value == "meta" for entry in given) or any(
            map(WORDS.search, words)
        )
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return bool(WORDS.search(name))
