"""Causes in the dtypes that a model computes in."""

from __future__ import annotations

from typing import ClassVar

from fsdp_migrate.verify.causes.cause import Cause, name_of
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question


class BufferDtype(Cause):
    """FSDP1 cast buffers, FSDP2 leaves them: a fp32 buffer promotes what it meets."""

    name, rule = "buffer-dtype", "FSDP104"
    cure = "Cast the buffers to the old buffer_dtype before fully_shard."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question < Question.FORWARD:
            return None
        for difference in comparison.tally.of(Question.BUFFERS):
            if difference.what == "dtype" and difference.event <= first.event:
                name = name_of(comparison, difference.name)
                return f"buffer {name} is {difference.before} before and {difference.after} after"
        return None


class _UnitDtype(Cause):
    """The policy of a unit has another dtype. ``what``: which of them; ``does``: what the unit does in it."""

    rule = "FSDP104"
    what: ClassVar[str]
    does: ClassVar[str]

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if not self.may_show_in(first.question):
            return None
        for difference in comparison.tally.of(Question.UNITS):
            if difference.what == self.what:
                unit = name_of(comparison, difference.name)
                return f"unit {unit} {self.does} in {difference.before} before and in {difference.after} after"
        return None

    def may_show_in(self, question: Question) -> bool:
        """Whether a difference that this question finds first can come from the dtype."""
        return question >= Question.UNITS


class ParamDtype(_UnitDtype):
    """A unit computes in another dtype."""

    name, what, does = "param-dtype", "param dtype", "computes"
    cure = "Pass fully_shard an mp_policy with the param_dtype that FSDP1's MixedPrecision had."


class OtherReduceDtype(_UnitDtype):
    """Gradients are added up in another dtype."""

    name, what, does = "reduce-dtype", "reduce dtype", "reduces"
    cure = "Pass fully_shard an mp_policy with the reduce_dtype that FSDP1's MixedPrecision had."

    def may_show_in(self, question: Question) -> bool:
        return question is Question.GRADIENTS


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
        return f"inputs of {name_of(comparison, first.name)} are {before} before and {after} after"
