"""How much of a report a traced run decides, and what it did not run."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.report.summary import count
from fsdp_rules.verdict.finding import Level

#: Places that are named.
_MOST = 12


def by_trace(result: RunResult) -> Iterator[str]:
    """Nothing without a trace; else which share of the findings is of lines that ran, and the places of the others."""
    if result.changed_since is None:
        return
    for path in result.changed_since:
        yield f"{path} has changed since it was traced, so its record is not used: trace again"
    asked = [finding for finding in result.findings if finding.level is not Level.INFO]
    ran = [finding for finding in asked if finding.ran]
    if not asked:
        return
    yield (
        f"trace: {len(ran)} of {count(len(asked), 'finding')} ({len(ran) / len(asked):.0%}) are on lines that ran, "
        f"so the run decides them"
    )
    left = [f"{finding.path}:{finding.line} ({finding.rule})" for finding in asked if not finding.ran]
    if left:
        more = f", and {len(left) - _MOST} more" if len(left) > _MOST else ""
        lines = f"{', '.join(left[:_MOST])}{more}"
        yield f"trace: these lines did not run: {lines}; also trace a run that evaluates, saves and resumes"
