"""What a reader is to do with the result: the assumptions to confirm, and what to test."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.report.half_migrated import warning
from fsdp_migrate.report.summary import both_kept, count, new_imports, places, printable
from fsdp_migrate.report.what_to_test import what_to_test
from fsdp_rules.verdict.finding import Finding, Level

#: What the levels mean, the one that needs most attention first.
MEANINGS = {
    Level.MANUAL: "not rewritten, to be done by hand (a comment marks the place)",
    Level.REVIEW: "rewritten, same meaning if the stated assumption is true",
    Level.SAFE: "rewritten, same numbers and same meaning",
    Level.INFO: "nothing to do, for information",
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
    steps = [*map(printable, filter(None, (both_kept(result.both), warning(result))))]
    manual, assumed = places(result.of_level(Level.MANUAL)), len(assumptions(result))
    if result.errors:
        steps.append(
            f"Fix {count(len(result.errors), 'file')} that could not be processed (see the reason next to each)."
        )
    if manual:
        place = "1 place that was" if manual == 1 else f"{manual} places that were"
        steps.append(
            f"Change by hand the {place} not rewritten. Each has a reason, advice, and a comment "
            "`TODO(fsdp-migrate ...)` in the code."
        )
    if importing := result.importing_helpers:
        steps.append(f"Install fsdp-compat on the machines that train: {new_imports(importing)}.")
    if assumed:
        steps.append(
            f"Read the assumptions ({assumed}) and their places: if one is not true for your program, change the "
            f"code there."
        )
    return steps
