"""Causes in how models are cut into units and over ranks."""

from __future__ import annotations

from fsdp_migrate.verify.causes.cause import Cause
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question


class Untied(Cause):
    """One parameter under two names before, two parameters after."""

    name = "untied"
    cure = "Tie the weights before fully_shard is called, and put both modules into one unit."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question < Question.INITIAL_WEIGHTS or first.question is Question.UNITS:
            return None
        apart = set(comparison.pairs.only_after)
        for parameter in comparison.before.parameters.values():
            root = parameter.key.partition(":")[0]
            split = [name for name in parameter.names[1:] if f"{root}:{name}" in apart]
            if split:
                return f"{split[0]} is tied to {parameter.names[0]} before and is a parameter of its own after"
        return None


class _Unit(Cause):
    """A difference in how parameters are sharded, where all values agree."""

    what: str

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.UNITS or first.what not in self.what.split(","):
            return None
        return self.sentence(first)

    def sentence(self, first: Difference) -> str:
        """What is different about the unit."""
        module = first.name.partition(":")[2] or "(root)"
        return f"{first.what} of unit {module} is {first.before} before and {first.after} after"


class MissingUnit(_Unit):
    """Parameters are gathered with another unit, or with none."""

    name, rule, what = "missing-unit", "FSDP103", "unit"
    cure = "Call fully_shard on the same modules that FSDP1 wrapped, innermost first."

    def sentence(self, first: Difference) -> str:
        return f"parameters {first.before} before are {first.after} after"


class OtherReshard(_Unit):
    """A unit keeps its parameters gathered, or no longer does."""

    name, rule, what = "other-reshard", "FSDP102", "reshard"
    cure = "Set reshard_after_forward to what the sharding strategy of FSDP1 did."


class OtherMesh(_Unit):
    """A unit is cut over other ranks, or kept elsewhere."""

    name, rule, what = "other-mesh", "FSDP102", "shards,replicas,offload"
    cure = "Give fully_shard the mesh that has FSDP1's groups: (replicate, shard) for a hybrid strategy."
