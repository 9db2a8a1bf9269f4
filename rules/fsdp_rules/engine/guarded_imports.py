"""New imports of a file that imports FSDP1 inside of ``try``: they belong into the same guard."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fsdp_rules.engine.import_statements import bound_name, from_import, module_of, small
from fsdp_rules.file.tree import dotted
from fsdp_rules.fsdp1.names import PUBLIC_MODULES

#: Modules that are missing where torch has no FSDP1 either.
GUARDED = ("torch.distributed", "fsdp_compat")


def into_guard(body: list[cst.BaseStatement], needed: Sequence[str]) -> tuple[list[cst.BaseStatement], list[str]]:
    """``body`` with those of the ``needed`` imports in the guard of FSDP1's import, and the imports that are left.

    A handler that gives FSDP1's name a value in its absence gives the new names the same one.
    """
    for position, statement in enumerate(body):
        if not isinstance(statement, cst.Try) or not _catches(statement):
            continue
        place = _fsdp1_import(statement)
        if place is None:
            continue
        mine = [entry for entry in needed if entry.startswith(tuple(f"from {name}" for name in GUARDED))]
        if not mine:
            return body, list(needed)
        modules: dict[str, list[str]] = {}
        for entry in mine:
            module, _, name = entry.removeprefix("from ").partition(" import ")
            modules.setdefault(module, []).append(name)
        lines = [cst.SimpleStatementLine([from_import(module, sorted(names))]) for module, names in modules.items()]
        inside = list(statement.body.body)
        inside[place + 1 : place + 1] = lines
        guarded = statement.with_changes(
            body=statement.body.with_changes(body=inside),
            handlers=[_with_absent(handler, [bound_name(entry) for entry in mine]) for handler in statement.handlers],
        )
        return [*body[:position], guarded, *body[position + 1 :]], [entry for entry in needed if entry not in mine]
    return body, list(needed)


def _catches(statement: cst.Try) -> bool:
    """Whether the program goes on without the import."""
    for handler in statement.handlers:
        block = handler.body.body
        last = block[-1] if block else None
        raised = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Raise)
        if raised or not isinstance(handler.body, cst.IndentedBlock):
            return False
    return isinstance(statement.body, cst.IndentedBlock)


def _fsdp1_import(statement: cst.Try) -> int | None:
    for position, line in enumerate(statement.body.body):
        node = small(line) if isinstance(line, cst.BaseStatement) else None
        if isinstance(node, cst.ImportFrom) and module_of(node) in PUBLIC_MODULES:
            return position
    return None


def _with_absent(handler: cst.ExceptHandler, names: list[str]) -> cst.ExceptHandler:
    """``handler`` with ``names`` given what it gives the first name that it assigns None."""
    block = list(handler.body.body)
    for position, line in enumerate(block):
        node = small(line) if isinstance(line, cst.BaseStatement) else None
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Name) and node.value.value == "None":
            absent = [name for name in names if name not in {dotted(target.target) for target in node.targets}]
            text = " = ".join([*absent, "None"])
            block[position + 1 : position + 1] = [cst.parse_statement(f"{text}\n")] if absent else []
            return handler.with_changes(body=handler.body.with_changes(body=block))
    return handler
