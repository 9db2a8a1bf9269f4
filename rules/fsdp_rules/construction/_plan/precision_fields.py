"""The fields of a MixedPrecision."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import bind
from fsdp_rules.file.file import File

FIELDS = (
    "param_dtype",
    "reduce_dtype",
    "buffer_dtype",
    "keep_low_precision_grads",
    "cast_forward_inputs",
    "cast_root_forward_inputs",
    "_module_classes_to_ignore",
)


def precision_fields(found: cst.BaseExpression, file: File) -> dict[str, cst.BaseExpression] | None:
    """The fields that a call of MixedPrecision sets; None for another expression."""
    if not isinstance(found, cst.Call) or file.fsdp1(found.func) != "MixedPrecision":
        return None
    fields = bind(found, FIELDS)
    return fields if fields is not None and set(fields) <= set(FIELDS) else None


def buffers_like(every: list[dict[str, cst.BaseExpression]], file: File) -> str | None:
    """The field of MixedPrecisionPolicy that equals ``buffer_dtype`` in each of ``every``."""
    for name in ("param_dtype", "reduce_dtype"):
        if all(
            name in fields and "buffer_dtype" in fields and file.code(fields[name]) == file.code(fields["buffer_dtype"])
            for fields in every
        ):
            return name
    return None
