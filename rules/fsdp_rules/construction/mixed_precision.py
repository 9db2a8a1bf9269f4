"""Rule for the argument ``mixed_precision``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import Precision, ShardPlan
from fsdp_rules.construction._plan.render import policy_text
from fsdp_rules.file.expressions import bind, brief, is_none
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level

FIELDS = (
    "param_dtype",
    "reduce_dtype",
    "buffer_dtype",
    "keep_low_precision_grads",
    "cast_forward_inputs",
    "cast_root_forward_inputs",
    "_module_classes_to_ignore",
)


class MixedPrecisionArgument(ArgumentRule):
    """mixed_precision.

    `MixedPrecision` becomes `MixedPrecisionPolicy`. FSDP1 casts only the inputs of the root, FSDP2 those of every unit,
    hence `cast_forward_inputs=False` inside. FSDP2 has no `buffer_dtype`: the buffers are cast where the model is
    sharded, and a saved state dict then has them in that dtype. `fsdp_compat.shard` takes models with BatchNorm, which
    FSDP1 keeps in full precision, and policies that are not literals in the same file.
    """

    id = "FSDP104"
    name = "mixed-precision"
    arguments = ("mixed_precision",)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision

bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

def build(model):
    model = FSDP(model, mixed_precision=bf16)
    return model
"""
    after = """
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

def build(model):
    fully_shard(model, mp_policy=bf16)
    return model
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Read the policy's fields, or leave it to the helper."""
        if is_none(value):
            return
        found = file.value(value)
        fields = self._fields(found, file)
        reason = self._beyond_native(value, found, fields, plan, file)
        if fields is None or reason is not None:
            plan.helper.append(reason or f"mixed_precision={brief(file.code(value))} is only known at run time")
            yield Diagnosis(
                value, Level.REVIEW, "fsdp_compat.shard applies the MixedPrecision at run time with FSDP1's cast rules"
            )
            return
        precision = Precision(fields)
        if isinstance(value, cst.Name):
            precision.variable = value.value
        plan.precision = precision
        if "buffer_dtype" in fields and is_none(file.value(fields["buffer_dtype"])):
            del fields["buffer_dtype"]
        message = "MixedPrecision becomes MixedPrecisionPolicy, which casts only the root's inputs, as FSDP1 does"
        edits = self._definition(value, found, fields, file)
        if "buffer_dtype" in fields:
            plan.assumptions.append("buffers are cast once, so saved state dicts have them in buffer_dtype")
        yield Diagnosis(value, Level.SAFE, message, edits=edits)

    def _fields(self, found: cst.BaseExpression, file: File) -> dict[str, cst.BaseExpression] | None:
        if not isinstance(found, cst.Call) or file.fsdp1(found.func) != "MixedPrecision":
            return None
        fields = bind(found, FIELDS)
        return fields if fields is not None and set(fields) <= set(FIELDS) else None

    def _beyond_native(
        self,
        value: cst.BaseExpression,
        found: cst.BaseExpression,
        fields: dict[str, cst.BaseExpression] | None,
        plan: ShardPlan,
        file: File,
    ) -> str | None:
        if fields is None:
            return None
        if "batchnorm" in file.project.flags:
            return (
                "models may have BatchNorm (for example from torchvision or timm), which FSDP1 keeps in full precision"
            )
        if "_module_classes_to_ignore" in fields:
            return "the MixedPrecision has its own module classes to ignore"
        precision = Precision(fields)
        if precision.flag("keep_low_precision_grads", False) is not False:
            return "keep_low_precision_grads has no FSDP2 field"
        if None in (precision.flag("cast_forward_inputs", False), precision.flag("cast_root_forward_inputs", True)):
            return "which inputs are cast is only known at run time"
        if found is not value:
            if not isinstance(value, cst.Name) or file.binding(value) is None:
                return "the MixedPrecision is passed through several variables"
            binding = file.binding(value)
            if binding is None or binding.value is not found:
                return "the MixedPrecision is passed through several variables"
            if len(file.uses(value.value)) > 1 or file.project.imports_from(file.path, value.value):
                return f"{value.value} is used in other places too"
        return None

    def _definition(
        self, value: cst.BaseExpression, found: cst.BaseExpression, fields: dict[str, cst.BaseExpression], file: File
    ) -> tuple[Replace, ...]:
        if found is value:
            return ()
        return (Replace(found, lambda code: policy_text(fields, file, code)),)
