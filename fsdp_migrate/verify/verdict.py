"""The answer: equal, equal within noise, or different, with the first difference and its cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fsdp_migrate.verify.causes.cause import Named
from fsdp_migrate.verify.causes.causes import name_cause
from fsdp_migrate.verify.compare.compare import Allowance, Comparison, first_differences, nothing_allowed
from fsdp_migrate.verify.compare.difference import CONTEXT, Difference, Question
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.written import Written

EQUAL, DIFFERENT, NOT_COMPARED = 0, 1, 2
_VALUES = [question for question in Question if question not in (*CONTEXT, Question.NORM)]


@dataclass(frozen=True)
class Verdict:
    """``firsts``: the earliest difference of each question, in order. ``noise``: what was allowed for, in words.

    ``alone``: modules that differ though they were fed the inputs of the run before; None where nothing was fed.
    ``resumed``: the step after which the run after went on from what the run before saved.
    ``written``: the checkpoints that the two wrote.
    """

    comparison: Comparison
    firsts: tuple[Difference, ...]
    cause: Named | None
    noise: str = ""
    notes: tuple[str, ...] = field(default=())
    alone: tuple[Difference, ...] | None = None
    resumed: int | None = None
    written: Written = field(default=Written())

    @property
    def first(self) -> Difference | None:
        """What decides: the earliest difference in values, else in how the models are sharded."""
        deciding = [difference for difference in self.firsts if difference.question not in CONTEXT]
        structural = [difference for difference in self.firsts if difference.question is Question.UNITS]
        return next(iter([*deciding, *structural]), None)

    @property
    def exit_code(self) -> int:
        return EQUAL if self.first is None and not self.written.different else DIFFERENT

    @property
    def compared(self) -> int:
        """Values that were compared bit for bit, those of each rank for themselves; norms are not among them."""
        return sum(self.comparison.tally.compared.get(question, 0) for question in _VALUES)

    @property
    def differing(self) -> int:
        return sum(len(self.comparison.tally.of(question)) for question in _VALUES)

    @property
    def rounded(self) -> int:
        """Gradient norms that are not the same bits, and within what another order of their sums makes of them."""
        return self.comparison.tally.rounded

    @property
    def steps(self) -> int:
        return len(self.comparison.before.steps)


def judge(
    before: Recording,
    after: Recording,
    allowance: Allowance = nothing_allowed,
    noise: str = "",
    notes: Sequence[str] = (),
) -> Verdict:
    """Compare two recordings that both hold what they were asked for."""
    comparison = Comparison(before, after, allowance)
    notes = (*notes, *before.answers)
    firsts = tuple(first_differences(comparison.tally))
    verdict = Verdict(comparison, firsts, None, noise, notes)
    cause = name_cause(comparison, verdict.first) if verdict.first is not None else None
    return Verdict(comparison, firsts, cause, noise, notes)


def with_rounding(verdict: Verdict, rounding: Named) -> Verdict:
    """The same, where it was judged with the measured effect of ``rounding``, the cause of what differs first."""
    if verdict.first is None:
        cure = "Nothing to do: rounding of that size has the same effect on the old run."
        return replace(verdict, cause=replace(rounding, cure=cure))
    rule = f" ({rounding.rule})" if rounding.rule else ""
    note = f"the measured effect is too small to explain it: {rounding.message}{rule}"
    cause = verdict.cause
    if cause is not None and cause.is_rounding:
        cure = "It is larger than the effect of rounding of that size on the old run: look for another change."
        cause = replace(cause, cure=cure)
    return replace(verdict, cause=cause, notes=(*verdict.notes, note))
