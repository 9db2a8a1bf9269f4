"""Which function of the file a call is of."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File, dotted


def called(call: cst.Call, file: File) -> cst.FunctionDef | None:
    """The function or method of this file that ``call`` is of; by its name alone where no other has it."""
    head, _, last = (dotted(call.func) or "").rpartition(".")
    if head not in ("", "self"):
        return None
    found = [function for function in file.nodes(cst.FunctionDef) if function.name.value == last]
    scope = file.scope(call)
    seen = [function for function in found if f"{scope}.".startswith(f"{file.scope(function)}.".lstrip("."))]
    nearest = max((len(file.scope(function)) for function in seen), default=0)
    seen = [function for function in seen if len(file.scope(function)) == nearest] or found
    return seen[0] if len(seen) == 1 else None
