"""The names that edited code does not read any more, and the assignments that go with them."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.tree import SCOPES
from fsdp_rules.project.walking import children


@dataclass(frozen=True)
class Reads:
    """The names that some code reads in each scope, the scopes inside it included, by its qualified name.

    ``shared`` are those that it declares global or nonlocal, ``attributes`` those of any object.
    """

    names: dict[str, Counter[str]]
    shared: set[str]
    attributes: set[str]


def unread(
    file: File, module: cst.Module, consumed: list[tuple[cst.CSTNode, str]], known: dict[str, Reads]
) -> list[cst.CSTNode]:
    """The assignments among ``consumed`` whose name nothing in the edited ``module`` reads any more.

    ``known`` is filled with what each statement at the top level reads, by its text.
    """
    if not consumed:
        return []
    found = []
    for statement in module.body:
        text = file.printer.text(statement)
        if text not in known:
            known[text] = _names_read(file.printer.parsed(statement))
        found.append(known[text])
    shared = set().union(*(reads.shared for reads in found))
    # What fills a dictionary reads its name, and goes with it.
    filling: Counter[tuple[str, str]] = Counter()
    for gone, name in dict.fromkeys(consumed):
        filling[file.scope(gone), name] += sum(use in file.uses(name) for use in file.inside(gone, cst.Name))

    def is_read(name: str, statement: cst.CSTNode) -> bool:
        scope = file.scope(statement)
        owner = next((one for one in file.ancestors(statement) if isinstance(one, SCOPES)), None)
        if isinstance(owner, cst.ClassDef) and any(name in one.attributes for one in found):
            return True
        reads = sum(one.names.get("" if name in shared else scope, Counter[str]())[name] for one in found)
        return reads > filling[scope, name]

    dead = [
        statement
        for statement, name in consumed
        if not is_read(name, statement)
        and not file.project.imports_from(file.path, name)
        and len(getattr(statement, "targets", ())) < 2
    ]
    return list(dict.fromkeys(dead))


def _names_read(tree: ast.Module) -> Reads:
    read: dict[str, Counter[str]] = defaultdict(Counter)
    shared: set[str] = set()
    attributes: set[str] = set()
    pending: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, ("",))]
    while pending:
        node, scopes = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            for scope in scopes:
                read[scope][node.id] += 1
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            shared.update(node.names)
        # What a definition reads from around it, its decorators and defaults, counts as read inside it too.
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scopes = (*scopes, f"{scopes[-1]}.{node.name}".lstrip("."))
        pending += [(child, scopes) for child in children(node)]
    return Reads(dict(read), shared, attributes)
