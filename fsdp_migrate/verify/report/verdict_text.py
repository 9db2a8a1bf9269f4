"""The verdict as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.report.summary import count
from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.report.facts import WITHIN, by_themselves, headline, place, readable, side, size, spread
from fsdp_migrate.verify.verdict import Verdict


def lines(verdict: Verdict) -> Iterator[str]:
    """Questions, first difference, cause, cost; the verdict itself comes last."""
    yield from _table(verdict)
    first = verdict.first
    if first is not None:
        yield ""
        yield f"first difference: {place(verdict, first)}"
        yield f"  before: {first.before}"
        yield f"  after:  {first.after}"
        if told := size(first.gap):
            yield f"  size:   {told}"
        yield from _spread(verdict)
    if verdict.cause is not None:
        rule = f" ({verdict.cause.rule})" if verdict.cause.rule else ""
        yield f"cause: {verdict.cause.message}{rule}"
        yield f"  {verdict.cause.cure}"
    elif first is not None:
        yield "cause: unknown"
    yield from _by_themselves(verdict)
    environment = verdict.comparison.tally.of(Question.ENVIRONMENT)
    for difference in environment:
        yield f"note: {difference.name} is {difference.before} before and {difference.after} after"
    yield from _written(verdict)
    for note in verdict.notes:
        yield f"note: {note}"
    yield ""
    yield from _cost(verdict)
    yield headline(verdict)


def _by_themselves(verdict: Verdict) -> Iterator[str]:
    found = by_themselves(verdict)
    if found is not None:
        yield f"with the inputs of the old run, {count(len(found), 'module')} still differ{'s' * (len(found) == 1)}"
    for module, what in found or ():
        yield f"  {module}: {what}"


def _written(verdict: Verdict) -> Iterator[str]:
    found = verdict.written
    both = len(found.equal) + len(found.different)
    if both:
        yield f"{'checkpoints written':28} {len(found.equal)} of {both} equal"
    for name, said in found.different:
        yield f"  {name}: {said}"
    for name, said in found.lost:
        yield f"note: {name}: {said}"
    for name in found.only_before:
        yield f"note: only the old run writes {name}"
    for name in found.only_after:
        yield f"note: only the new run writes {name}"


def _table(verdict: Verdict) -> Iterator[str]:
    for row in spread(verdict):
        told = f"{row.equal} of {row.compared} equal" if row.compared else "alike"
        if row.rounded:
            told += f", {row.rounded} {WITHIN}"
        if row.different and not row.compared:
            told = f"{row.different} different"
        yield f"{row.question:28} {told}"


def _spread(verdict: Verdict) -> Iterator[str]:
    first = verdict.first
    if first is None:
        return
    names = [d.name for d in verdict.comparison.tally.of(first.question) if d.event == first.event]
    others = list(dict.fromkeys(name.partition(":")[2] or "(root)" for name in names))[1:]
    if others:
        some = ", ".join(others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        yield f"  also:   {some}{more}"


def _cost(verdict: Verdict) -> Iterator[str]:
    before, after = side(verdict.comparison.before), side(verdict.comparison.after)
    if before.seconds is not None and after.seconds is not None:
        yield f"{'seconds per step':28} {before.seconds:.3f} before, {after.seconds:.3f} after"
    yield f"{'peak ' + before.peak_of:28} {readable(before.peak)} before, {readable(after.peak)} after"
    calls = (
        f"{before.collectives} ({readable(before.nbytes)}) before, {after.collectives} ({readable(after.nbytes)}) after"
    )
    yield f"{'collectives per step':28} {calls}"
