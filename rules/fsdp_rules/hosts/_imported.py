"""The import of a framework's class, where its name is read in one place alone."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.printing import alias_text, import_text
from fsdp_rules.verdict.diagnosis import ReplaceStatement


def renamed_import(
    node: cst.Call, modules: tuple[str, ...], old: str, new: str, file: File
) -> tuple[str, tuple[ReplaceStatement, ...]] | None:
    """What ``new`` is called in place of the class of the call ``node``, and the edits of the import.

    ``modules`` are those that have both classes; the first also serves an import of ``old`` alone from elsewhere in its
    package. None where the old name has other uses, or no single import.
    """
    if isinstance(node.func, cst.Attribute):
        full = file.resolved(node.func.value)
        return (f"{file.code(node.func.value)}.{new}", ()) if full in modules else None
    if not isinstance(node.func, cst.Name) or len(file.uses(node.func.value)) != 1:
        return None
    local = node.func.value
    found = [
        (one, alias)
        for one in file.nodes(cst.ImportFrom)
        if not isinstance(one.names, cst.ImportStar)
        for alias in one.names
        if (alias.evaluated_alias or alias.evaluated_name) == local and alias.evaluated_name == old
    ]
    if len(found) != 1:
        return None
    statement, mine = found[0]
    if isinstance(statement.names, cst.ImportStar):
        return None
    module = file.code(statement.module) if statement.module else ""
    if module not in modules:
        if len(statement.names) != 1 or not module.startswith(f"{modules[0]}."):
            return None
        module = modules[0]
    names = [alias_text(one.with_changes(name=cst.Name(new)) if one is mine else one) for one in statement.names]
    text = import_text(module, names, long="\n" in file.code(statement))
    return mine.evaluated_alias or new, (ReplaceStatement(statement, lambda code: text),)
