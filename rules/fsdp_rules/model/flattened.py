"""Whether FSDP1 held a model's parameters flat, as it does unless ``use_orig_params=True`` is given."""

from __future__ import annotations

import ast
import re

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.wrap_arguments import wrap_of
from fsdp_rules.project.project import Certainty

ARGUMENT = "use_orig_params"
#: The argument, as a keyword or a key, and what it is given.
WRITTEN = re.compile(rb"\buse_orig_params\b[\"']?\s*[=:]\s*(\w+)|\buse_orig_params\b")


def flattened(model: cst.BaseExpression | None, file: File) -> Certainty:
    """How sure it is that the wrap that ``model`` comes from has flat parameters.

    Where the wrap is not known, or given what is not written in it, the files of the project decide.
    """
    wrap = wrap_of(dotted(model) or "", file.scope(model), file) if model is not None else None
    keywords = wrap.keywords if wrap is not None else []
    value = next((keyword.value for keyword in keywords if keyword.arg == ARGUMENT), None)
    if isinstance(value, ast.Constant):
        return Certainty.NO if value.value is True else Certainty.YES
    if wrap is not None and value is None and all(keyword.arg is not None for keyword in keywords):
        return Certainty.YES
    written = {found.group(1) for source in file.project.sources.values() for found in WRITTEN.finditer(source)}
    if written <= {b"True"}:
        return Certainty.NO if written else Certainty.YES
    return Certainty.YES if written == {b"False"} else Certainty.MAYBE
