"""Whether a verdict says about a defect what it has to say."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.verify.verdict import Verdict
from tests.verify.defects import Defect


def misses(defect: Defect, verdict: Verdict) -> Iterator[str]:
    """What is wrong with the verdict, if anything."""
    first = verdict.first
    if first is None:
        yield "not found"
        return
    question, step, name = defect.at
    found = (first.question.text, first.step, first.name.partition(":")[2])
    if found[:2] != (question, step) or not found[2].startswith(name):
        yield f"the first difference is {found}, not {defect.at}"
    cause = verdict.cause.cause if verdict.cause is not None else None
    if cause != defect.cause:
        yield f"the cause is {cause}, not {defect.cause}"
