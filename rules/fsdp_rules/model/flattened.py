"""Whether FSDP1 held a model's parameters flat, as it does unless ``use_orig_params=True`` is given."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.wrap_given import wrap_given
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.value_facts import UNKNOWN

#: The argument, as a keyword or a key, and what it is given.
WRITTEN = re.compile(rb"\buse_orig_params\b[\"']?\s*[=:]\s*(\w+)|\buse_orig_params\b")


def flattened(model: cst.BaseExpression | None, file: File) -> Certainty:
    """How sure it is that the wrap that ``model`` comes from has flat parameters.

    Where the wrap is not known, or given what is not written in it, the files of the project decide.
    """
    given = wrap_given(model, file)
    if UNKNOWN not in given.texts("use_orig_params"):
        return Certainty(Certainty.YES - given.keeps_originals())
    written = {found.group(1) for source in file.project.sources.values() for found in WRITTEN.finditer(source)}
    if written <= {b"True"}:
        return Certainty.NO if written else Certainty.YES
    return Certainty.YES if written == {b"False"} else Certainty.MAYBE
