"""``rewrite --why FILE:LINE``: what the expressions of a line may be, and where the code makes that."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.report.rewrite.text_report import place
from fsdp_migrate.report.summary import printable
from fsdp_rules.values.derivations import Derivations, Derived, Step


def lines(path: str, line: int, result: RunResult, why: Derivations) -> Iterator[str]:
    """The findings of ``path:line``, then each expression with the way of what it may be, from where that is made."""
    found = [one for one in result.findings if (one.path, one.line) == (path, line)]
    for one in found:
        yield f"{place(one)}: {one.rule} {one.level.value}: {printable(one.text)}"
    where = printable(f"{path}:{line}")
    if not why.is_read:
        yield f"{where}: not analysed, because no FSDP1 model is passed to this file"
    elif not why.found:
        yield f"{where}: no expression that begins here can be an FSDP1 model or part of one"
    for each in why.found:
        yield f"{where}: `{printable(each.text)}` may be {each.kind.value}"
        yield from _way(each)


def _way(derived: Derived) -> Iterator[str]:
    """One line per expression, with what the object is where that changes."""
    places = [f"{step.path}:{step.line}" for step in derived.steps]
    width = max(map(len, places), default=0)
    last = None
    for step, where in zip(derived.steps, places, strict=True):
        notes = [] if step.kind is last else [step.kind.value]
        yield f"    {printable(where):{width}}  {printable(step.text)}{_note([*notes, *_by_name(step)])}"
        last = step.kind


def _by_name(step: Step) -> list[str]:
    return [f"only by its name: some object has this as `{printable(step.by_name)}`"] if step.by_name else []


def _note(notes: list[str]) -> str:
    return f"  ({'; '.join(notes)})" if notes else ""
