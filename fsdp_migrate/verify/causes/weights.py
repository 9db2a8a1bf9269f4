"""Causes in the weights before the first step."""

from __future__ import annotations

import math

from fsdp_migrate.verify.causes.cause import Cause, name_of
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.compare.gap import agree, gap
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.recording.value import Copies, Value


def _initial(recording: Recording) -> dict[str, Copies]:
    return {key: copies for start in reversed(recording.optimizers) for key, copies in start.weights.items()}


def _pairs(comparison: Comparison) -> list[tuple[str, Copies, Copies]]:
    """Each parameter of both runs and its copies before the first step."""
    before, after = _initial(comparison.before), _initial(comparison.after)
    return [(key, before.get(key, (None,)), after.get(other, (None,))) for key, other in comparison.pairs.keys.items()]


def _both(comparison: Comparison) -> list[tuple[str, Value, Value]]:
    """Their first copies, where both runs have one."""
    return [(key, one, two) for key, (one, *_), (two, *_) in _pairs(comparison) if one is not None and two is not None]


class ReplicasApart(Cause):
    """Copies of one parameter start different: FSDP1 broadcast them, or every rank drew its own."""

    name, rule = "replicas-apart", "FSDP114"
    cure = "Broadcast the parameters from rank 0 before fully_shard, or load them with broadcast_from_rank0=True."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.INITIAL_WEIGHTS:
            return None
        for key, before, after in _pairs(comparison):
            if agree(before) and not agree(after):
                return (
                    f"the replicas of {name_of(comparison, key)} start with different values after, but with "
                    f"equal ones before"
                )
        return None


class NotLoaded(Cause):
    """Parameters that have values before are zeros after."""

    name, rule = "not-loaded", "FSDP109"
    cure = "Initialise or load the parameters after to_empty, before the first forward."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.INITIAL_WEIGHTS:
            return None
        # Biases start as zeros; a matrix of zeros is one that nobody has filled.
        shapes = {key: parameter.shape for key, parameter in comparison.before.parameters.items()}
        pairs = [(key, one, two) for key, one, two in _both(comparison) if len(shapes[key]) > 1]
        zeros = [key for key, one, two in pairs if two.is_zero and not one.is_zero]
        if not zeros:
            return None
        return f"{name_of(comparison, *zeros)} is all zeros before the first step: neither initialised nor loaded"


class InitialisedLater(Cause):
    """Random parameters are other draws of the same distribution, and constant ones are equal."""

    name, rule = "initialised-later", "FSDP109"
    cure = "Initialise the whole model before fully_shard, with the same seed on every rank."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.INITIAL_WEIGHTS or first.gap is None:
            return None
        pairs = _both(comparison)
        constant = [(one, two) for _, one, two in pairs if _is_constant(one)]
        random = [(one, two) for _, one, two in pairs if not _is_constant(one)]
        redrawn = [(one, two) for one, two in random if not one.same_bits(two)]
        alike = all(_same_distribution(one, two) for one, two in redrawn)
        if not redrawn or not alike or not all(one.same_bits(two) for one, two in constant):
            return None
        return (
            f"{len(redrawn)} parameters have different random values before the first step: initialised after "
            f"sharding, or reseeded"
        )


def _is_constant(value: Value) -> bool:
    return math.isclose(value.l2, value.greatest * math.sqrt(value.numel), rel_tol=1e-6)


def _same_distribution(one: Value, two: Value) -> bool:
    # The norm of n independent draws varies by about 1 / sqrt(2 n); five of that, and no less than 2 %.
    apart = gap(one, two)
    # The same numbers times another one are no other draw.
    if _is_constant(two) or one.dtype != two.dtype or (apart is not None and apart.ratio is not None):
        return False
    spread = max(0.02, 5 / math.sqrt(2 * max(one.numel, 1)))
    moved = [abs(one.numbers()[k] - two.numbers()[k]) for k in one.numbers().keys() & two.numbers().keys()]
    far = sum(moved) / max(len(moved), 1) > 0.2 * one.l2 / math.sqrt(max(one.numel, 1))
    return far and math.isclose(one.l2, two.l2, rel_tol=spread)
