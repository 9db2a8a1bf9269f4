"""Causes in the dtypes that a model computes in."""

from __future__ import annotations

from fsdp_migrate.verify.causes.cause import Cause
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.compare.pairs import shown


class BufferDtype(Cause):
    """FSDP1 cast buffers, FSDP2 leaves them: a fp32 buffer promotes what it meets."""

    name, rule = "buffer-dtype", "FSDP104"
    cure = "Cast the buffers to what buffer_dtype was, before fully_shard."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question < Question.FORWARD:
            return None
        for difference in comparison.tally.of(Question.BUFFERS):
            if difference.what == "dtype" and difference.step <= first.step:
                name = shown(difference.name, len(comparison.before.models) > 1)
                return f"buffer {name} is {difference.before} before and {difference.after} after"
        return None


class ParamDtype(Cause):
    """A unit computes in another dtype."""

    name, rule = "param-dtype", "FSDP104"
    cure = "Give fully_shard an mp_policy with the param_dtype that FSDP1's MixedPrecision had."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question < Question.UNITS:
            return None
        for difference in comparison.tally.of(Question.UNITS):
            if difference.what == "param dtype":
                unit = shown(difference.name, len(comparison.before.models) > 1)
                return f"unit {unit} computes in {difference.before} before and in {difference.after} after"
        return None


class InputDtype(Cause):
    """A module's inputs have another dtype: FSDP1 casts those of the root alone, FSDP2 those of every unit."""

    name, rule = "input-dtype", "FSDP104"
    cure = "Set cast_forward_inputs=False for the units inside, and True for the root."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.FORWARD or not first.what.startswith("input"):
            return None
        before, after = first.before.partition(",")[0], first.after.partition(",")[0]
        if before == after or not {before, after} <= {"float32", "bfloat16", "float16", "float64"}:
            return None
        module = shown(first.name, len(comparison.before.models) > 1)
        return f"inputs of {module} are {before} before and {after} after"
