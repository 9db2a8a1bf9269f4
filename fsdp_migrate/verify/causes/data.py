"""Causes in what the models are fed."""

from __future__ import annotations

from fsdp_migrate.verify.causes.cause import Cause
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question


class OtherData(Cause):
    """The inputs of a model differ, so that nothing after them can agree."""

    name = "other-data"
    cure = "Seed the order of the data in the program, or pass --seed, and compare again."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.DATA:
            return None
        return f"the model's inputs differ on rank {first.rank} from step {first.step} on"
