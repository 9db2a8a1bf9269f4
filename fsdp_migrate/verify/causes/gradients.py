"""Causes between a backward and the gradients that the optimizer sees."""

from __future__ import annotations

import math

from fsdp_migrate.verify.causes.cause import HOW_FAR, Cause, at_step, name_of, steps_of
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question

#: The relative size up to which a difference is that of a sum in another order. In fp32 and fp64 a few last digits
#: have room to grow where a backward subtracts; in 16 bits that would be visible in any case.
_ROUNDING = {"float32": 2.0**-16, "bfloat16": 2.0**-5, "float16": 2.0**-8, "float64": 2.0**-45}


class NotReduced(Cause):
    """Gradients stay on the ranks that computed them: the last backward of a step ran without a reduction."""

    name, rule = "not-reduced", "FSDP202"
    cure = "Call set_requires_gradient_sync(True) before the last backward of each step."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.GRADIENTS:
            return None
        before, after = steps_of(comparison, first)
        if not all(copies[0] is None for copies in (after.unclipped or after.grads).values()):
            return None
        scatters = before.ranks[0].collectives.get("reduce_scatter", 0) + before.ranks[0].collectives.get("reduce", 0)
        if not scatters or after.ranks[0].collectives.get("reduce_scatter", 0):
            return None
        return f"no gradient is reduced in step {first.step}: {scatters} reductions before and none after"


class MissingGradients(Cause):
    """Parameters that a step leaves unused have zeros on one side and no gradient on the other."""

    name, rule = "unused-parameters", "FSDP121"
    cure = "Call set_reduce_scatter_unused_params(True) on every unit (torch 2.13), or use fsdp_compat.shard."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question not in (Question.GRADIENTS, Question.CLIPPED_GRADIENTS):
            return None
        if {first.before, first.after} != {"zeros", "None"}:
            return None
        return f"gradient of {name_of(comparison, first.name)} is {first.before} before and {first.after} after"


class OtherDivisor(Cause):
    """Every gradient is the same multiple of what it was."""

    name, rule = "other-divisor", "FSDP209"
    cure = "Let FSDP2 divide gradients by the number of ranks, and accumulate as many backwards as before."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.GRADIENTS or comparison.tally.of(Question.LOCAL_GRADIENTS):
            return None
        gaps = [found.gap for found in at_step(comparison, Question.GRADIENTS, first)]
        ratios = [gap.ratio for gap in gaps if gap is not None and gap.ratio is not None]
        if len(gaps) < 2 or len(ratios) != len(gaps) or not _all_close(ratios) or abs(ratios[0] - 1) < 0.01:
            return None
        step = steps_of(comparison, first)[0]
        whole = [copies[0] for copies in (step.unclipped or step.grads).values()]
        if len(gaps) < sum(value is not None and not value.is_zero for value in whole):
            return None
        return f"every gradient is {ratios[0]:.4g} times the old one: it is divided by a different number"


def _all_close(ratios: list[float]) -> bool:
    return all(math.isclose(ratio, ratios[0], rel_tol=1e-3) for ratio in ratios)


class SharedInput(Cause):
    """A gradient differs by rounding before anything is reduced, while all that led to it is equal."""

    name, rule = "shared-input", "FSDP122"
    cure = "FSDP2 sums the gradient of an input that units share in a different order; " + HOW_FAR
    is_rounding = True

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.LOCAL_GRADIENTS:
            return None
        found = at_step(comparison, Question.LOCAL_GRADIENTS, first)
        # What is reduced in fp32 has the rounding of the backward that computed it.
        coarse = _rounding_of(first)
        if any(
            difference.relative > coarse for difference in (*found, *at_step(comparison, Question.GRADIENTS, first))
        ):
            return None
        module = name_of(comparison, first.name)
        return (
            f"the {first.what} of {module} differs within rounding, and all earlier values are equal: order of "
            f"summation"
        )


class OrderOfSummation(Cause):
    """Gradients differ by rounding, while data, weights and losses are equal."""

    name = "order-of-summation"
    cure = "The groups of ranks are the same; --deep shows whether the reduction causes it; " + HOW_FAR
    is_rounding = True

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.GRADIENTS:
            return None
        found = at_step(comparison, Question.GRADIENTS, first)
        if not _all_rounding(found):
            return None
        most = max((difference.gap.ulps or 0 for difference in found if difference.gap is not None), default=0)
        size = f"within {most} ulps of the sampled elements: order of summation"
        recorded = first.step < min(comparison.before.deep, comparison.after.deep)
        return f"gradients differ only after reduction, {size}" if recorded else f"gradients differ by rounding, {size}"


class AccumulatedIn(Cause):
    """Unreduced gradients are added up by FSDP1 in the dtype of the computation, by FSDP2 in that of the reduction."""

    name, rule = "accumulation-dtype", "FSDP202"
    cure = "Set reduce_dtype to float32 for the least rounding; with float32 throughout, the two are equal."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.GRADIENTS:
            return None
        units, others = (
            [u for model in side.models for u in model.units] for side in (comparison.before, comparison.after)
        )
        pairs = {(unit["param dtype"], unit["reduce dtype"]) for unit in units if unit["kind"] == "fsdp1"}
        computed, reduced = min(((one, two) for one, two in pairs if one and two and one != two), default=("", ""))
        if not computed or any(unit["kind"] == "fsdp1" for unit in others):
            return None
        rank = steps_of(comparison, first)[0].ranks[0]
        backwards = len(rank.losses)
        reductions = rank.collectives.get("reduce_scatter", 0) or rank.collectives.get("all_reduce", 0)
        coarse = max(_ROUNDING.get(computed, 0.0), _ROUNDING.get(reduced, 0.0))
        small = all(found.relative <= coarse for found in at_step(comparison, Question.GRADIENTS, first))
        if backwards < 2 or reductions >= backwards * len(units) or not small:
            return None
        return f"gradients of {backwards} backwards are summed in {computed} before and in {reduced} after"


def _all_rounding(found: list[Difference]) -> bool:
    return all(difference.gap is not None and _is_rounding(difference) for difference in found)


def _is_rounding(difference: Difference) -> bool:
    return difference.relative <= _rounding_of(difference)


def _rounding_of(difference: Difference) -> float:
    return _ROUNDING.get(difference.before.partition(",")[0], 0.0)
