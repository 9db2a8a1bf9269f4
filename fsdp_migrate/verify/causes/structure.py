"""Causes in how models are cut into units and over ranks."""

from __future__ import annotations

from fsdp_migrate.verify.causes.cause import Cause, at_step, name_of
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.compare.setup import unit_of


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
                return f"{split[0]} is tied to {parameter.names[0]} before and is a separate parameter after"
        return None


class InNoUnit(Cause):
    """Parameters that FSDP1 left out of sharding, each rank with its own, are sharded and reduced after."""

    name, rule = "in-no-unit", "FSDP108"
    cure = "Pass these parameters to every fully_shard call as ignored_params, as FSDP1 ignored them."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question not in (Question.INITIAL_WEIGHTS, Question.GRADIENTS):
            return None
        left_out: set[str] = set()
        for number, (one, two) in enumerate(zip(comparison.before.models, comparison.after.models, strict=False)):
            held, sharded = unit_of(number, one), unit_of(number, two)
            keys = {parameter.key for parameter in one.parameters} if held else set()
            left_out |= {key for key in keys - held.keys() if comparison.pairs.keys.get(key, key) in sharded}
        names = list(dict.fromkeys(found.name for found in at_step(comparison, first.question, first)))
        if not names or not left_out.issuperset(names):
            return None
        return f"{name_of(comparison, *names)} was in no unit before (ignored) and is sharded after"


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
    cure = "Set reshard_after_forward to match the sharding strategy of FSDP1."


class OtherMesh(_Unit):
    """A unit is cut over other ranks, or kept elsewhere."""

    name, rule, what = "other-mesh", "FSDP102", "shards,replicas,offload"
    cure = "Pass fully_shard a mesh with FSDP1's groups: (replicate, shard) for a hybrid strategy."
