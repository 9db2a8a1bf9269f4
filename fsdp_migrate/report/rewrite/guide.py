"""What a reader is to do with the result: the assumptions to confirm, and what to test."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.report.half_migrated import warning
from fsdp_migrate.report.summary import count, printable
from fsdp_migrate.report.what_to_test import what_to_test
from fsdp_rules.verdict.finding import Finding, Level

#: What the levels mean, the one that needs most attention first.
MEANINGS = {
    Level.MANUAL: "not rewritten; to be done by hand, a comment marks the place",
    Level.REVIEW: "rewritten; means the same under the assumption that is stated",
    Level.SAFE: "rewritten; same numbers, same meaning",
    Level.INFO: "nothing to do, worth knowing",
}


@dataclass(frozen=True)
class Assumption:
    """What some rewritten places rest on, once for all ``places``; ``advice`` says what to do where it fails."""

    message: str
    advice: str
    places: tuple[Finding, ...]


@dataclass(frozen=True)
class Check:
    """One thing to test, and the rules that ask for it."""

    sentence: str
    rules: tuple[str, ...]


def assumptions(result: RunResult) -> list[Assumption]:
    """Each distinct message of level ``review`` once, in the order of the files."""
    places: dict[tuple[str, str], list[Finding]] = {}
    for finding in result.of_level(Level.REVIEW):
        places.setdefault((finding.message, finding.advice), []).append(finding)
    return [Assumption(message, advice, tuple(found)) for (message, advice), found in places.items()]


def checks(result: RunResult) -> list[Check]:
    """What to test, each thing once; nothing is asked for findings that leave nothing to do."""
    rules = sorted({finding.rule for finding in result.findings if finding.level is not Level.INFO})
    wanted: dict[str, list[str]] = {}
    for rule in rules:
        wanted.setdefault(what_to_test(rule), []).append(rule)
    return [Check(sentence, tuple(asking)) for sentence, asking in wanted.items()]


def next_steps(result: RunResult) -> list[str]:
    """What to do, in this order, before anything is tested."""
    steps = [printable(said)] if (said := warning(result)) else []
    manual, assumed = len(result.of_level(Level.MANUAL)), len(assumptions(result))
    if result.errors:
        steps.append(f"Mend {count(len(result.errors), 'file')} that could not be done; the reason stands beside each.")
    if manual:
        place = "1 place that was" if manual == 1 else f"{manual} places that were"
        steps.append(
            f"Do by hand the {place} not rewritten. Each says why and what to do; in the code a comment "
            "`TODO(fsdp-migrate ...)` marks it."
        )
    if assumed:
        steps.append(
            f"Read the assumptions ({assumed}), and look at their places: where one does not hold for your program, "
            "change the code there."
        )
    return steps
