"""What every report says, in plain values: computed once from a verdict."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import NamedTuple

from fsdp_migrate.report.summary import count
from fsdp_migrate.verify.compare.difference import NORM_ROUNDING, Difference, Question
from fsdp_migrate.verify.compare.gap import Gap
from fsdp_migrate.verify.compare.pairs import shown
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.verdict import Verdict

_WARM_UP = 2
#: How near gradient norms are that count as equal and are not the same bits.
WITHIN = f"within {NORM_ROUNDING:.0e}".replace("e-0", "e-")


@dataclass(frozen=True)
class Side:
    """What one run cost: medians per step after warm-up, in seconds, bytes and calls, of the rank with most."""

    seconds: float | None
    peak: int
    peak_of: str
    collectives: int
    nbytes: int


def side(recording: Recording) -> Side:
    """The cost of one run."""
    times = [max(rank.seconds for rank in step.ranks) for step in recording.steps[_WARM_UP:]]
    last = recording.steps[-1] if recording.steps else None
    kind = next(iter(last.ranks[0].peak)) if last is not None else "rss"
    middle = recording.steps[min(_WARM_UP, len(recording.steps) - 1)].ranks[0].collectives if last is not None else {}
    return Side(
        statistics.median(times) if times else None,
        max(rank.peak[kind] for rank in last.ranks) if last is not None else 0,
        "GPU memory" if kind == "cuda" else "memory of the process",
        sum(count for name, count in middle.items() if not name.endswith("bytes")),
        sum(count for name, count in middle.items() if name.endswith("bytes")),
    )


def headline(verdict: Verdict) -> str:
    """The verdict in one line."""
    comparison = verdict.comparison
    before, after = comparison.before.world, comparison.after.world
    ranks = count(before, "rank") if before == after else f"{before} and {count(after, 'rank')}"
    over = f"over {count(verdict.steps, 'step')} on {ranks}"
    if verdict.resumed is not None:
        over += f", resumed after step {verdict.resumed}"
    first = verdict.first
    if first is None and verdict.written.different:
        files = count(len(verdict.written.different), "checkpoint")
        return (
            f"different: {files} of the checkpoints that both runs wrote, while all {verdict.compared} values are "
            f"equal {over}"
        )
    if first is None and verdict.noise:
        same = verdict.compared - verdict.differing
        return f"equal within {verdict.noise}: {same} of {verdict.compared} values {over}"
    if first is None:
        return f"equal: {verdict.compared} of {verdict.compared} values {over}, bit for bit{_rounded(verdict)}"
    if first.question is Question.UNITS:
        return f"different: all {verdict.compared} values are equal {over}, but the models are sharded differently"
    return f"different: {verdict.differing} of {verdict.compared} values {over}"


def _rounded(verdict: Verdict) -> str:
    """The gradient norms that are not the same bits."""
    return f", {count(verdict.rounded, 'gradient norm')} {WITHIN}" if verdict.rounded else ""


def place(verdict: Verdict, difference: Difference) -> str:
    """Where a difference is: step, rank, phase, name."""
    models = verdict.comparison.before.models
    parts = ["before the first step" if difference.step < 0 else f"step {difference.step}"]
    optimizers = verdict.comparison.before.optimizers
    if len(optimizers) > 1 and difference.step >= 0:
        parts.append(f"optimizer {difference.optimizer} ({optimizers[difference.optimizer].name})")
    if difference.rank is not None:
        parts.append(f"rank {difference.rank}")
    parts.append(difference.question.text)
    if difference.name:
        named = difference.question is Question.ENVIRONMENT
        parts.append(difference.name if named else shown(difference.name, models))
    if difference.what:
        parts.append(difference.what)
    return ", ".join(parts)


def by_themselves(verdict: Verdict) -> list[tuple[str, str]] | None:
    """Modules that differ on the inputs of before, and what about them; None where none was fed those."""
    if verdict.alone is None:
        return None
    models = verdict.comparison.before.models
    return [
        (shown(each.name, models), ", ".join(filter(None, (each.what, f"rank {each.rank}", size(each.gap)))))
        for each in verdict.alone
    ]


def size(gap: Gap | None) -> str:
    """How large a difference is, in words; empty where it cannot be told."""
    if gap is None or gap.relative == float("inf"):
        return ""
    text = f"{gap.relative:.3g} relative" if gap.relative > 2.0**-53 else "in elements that are not sampled"
    if gap.ulps is not None:
        text += f", {gap.ulps} ulps" if gap.ulps != 1 else ", 1 ulp"
    if gap.ratio is not None and abs(gap.ratio - 1) > 1e-3:
        text += f", {gap.ratio:.4g} times"
    return text


class Row(NamedTuple):
    """One question: how many values were compared, how many are not the same bits and near enough, how many differ."""

    question: str
    compared: int
    rounded: int
    different: int

    @property
    def equal(self) -> int:
        """The values that are the same bits."""
        return self.compared - self.rounded - self.different


def spread(verdict: Verdict) -> list[Row]:
    """What came out for each question."""
    tally = verdict.comparison.tally
    return [
        Row(
            question.text,
            tally.compared.get(question, 0),
            tally.rounded if question is Question.NORM else 0,
            len(tally.of(question)),
        )
        for question in Question
        if question is not Question.ENVIRONMENT and (tally.compared.get(question) or tally.of(question))
    ]


def readable(number: int) -> str:
    """Bytes, in the largest unit that gives at least one."""
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
