"""The import lines of a rewritten file: what is no longer used goes, what the output needs comes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.engine.import_statements import bound_name, bound_names, visited
from fsdp_rules.engine.new_imports import Adder
from fsdp_rules.engine.unused_imports import Cleaner
from fsdp_rules.engine.used_names import is_read_beyond, used_at_top
from fsdp_rules.file.file import File


def tidy_imports(before: File, module: cst.Module, wanted: Iterable[str]) -> tuple[cst.Module, str]:
    """``module`` (the edited tree of ``before``) with minimal imports, and what became of FSDP1's ("" for nothing).

    ``wanted`` are import statements that the edits may need; each is added only if the name that it binds is used
    and not bound already. FSDP1 names that helpers still take are imported from ``fsdp_compat`` instead of torch.
    """
    if before.settings.to == "shim":
        bound = bound_names(before, module)
        needed = [one for one in wanted if (name := bound_name(one)) not in bound or _is_lacking(name, before, module)]
        return Adder(before, needed, False).run(module), ""
    names: dict[str, set[str]] = {}
    used_before = used_at_top(before, before.module, names)
    used = used_at_top(before, module, names)
    cleaner = Cleaner(before, used, used_before)
    module = visited(before, module, cleaner, "import")
    bound = bound_names(before, module)
    needed = [*cleaner.moved]
    for statement in wanted:
        name = bound_name(statement)
        if (
            name in used
            and (name not in bound or _is_lacking(name, before, module))
            and (name not in used_before or _is_added(name, before, module))
        ):
            needed.append(statement)
    if needed or cleaner.emptied:
        module = Adder(before, sorted(set(needed)), cleaner.emptied).run(module)
    return module, cleaner.said()


def _is_lacking(name: str, before: File, module: cst.Module) -> bool:
    """Whether only functions of ``module`` import ``name``, and it is wanted or read outside of them as well."""
    references = before.references
    if name in references.imported_above:
        return False
    return name in references.wanted_above or is_read_beyond(ast.parse(before.printer.code(module)), name)


def _is_added(name: str, before: File, module: cst.Module) -> bool:
    """Whether ``module`` has ``name`` more often than ``before``, which may use it without an import that is seen."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return len(word.findall(before.printer.code(module))) > len(word.findall(before.text))
