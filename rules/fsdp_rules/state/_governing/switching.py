"""Context managers of a project's own that set the kind of state for the code inside them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.called import called
from fsdp_rules.file.file import File, dotted
from fsdp_rules.project.project import module_name


def switching(block: cst.With, file: File) -> Iterator[cst.Call]:
    """The calls by which ``block`` enters such context managers."""
    if not file.project.switchers:
        return
    for item in block.items:
        call = item.item
        if isinstance(call, cst.Call) and _is_of_switcher(call, file):
            yield call


def is_switcher(function: cst.FunctionDef | None, file: File) -> bool:
    """Whether ``function`` is such a context manager."""
    if function is None:
        return False
    outer = file.scope(function)
    return file.project.switches(".".join(filter(None, [module_name(file.path), outer, function.name.value])))


def _is_of_switcher(call: cst.Call, file: File) -> bool:
    full, name = file.resolved(call.func), dotted(call.func)
    if full is not None or name is None:
        return full is not None and file.project.switches(full)
    own = f"{module_name(file.path)}.{name}"
    return is_switcher(called(call, file), file) or file.project.switches(own)
