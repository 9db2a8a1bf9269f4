"""Plain lines, for people and logs."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator

from fsdp_migrate.check.checked import CheckResult, Told
from fsdp_migrate.report import stats
from fsdp_migrate.report.shorten import shortened
from fsdp_migrate.report.summary import STDIN, both_kept, count, printable
from fsdp_rules.verdict.finding import Level


def render(result: CheckResult, verbosity: str = "") -> str:
    """One line per finding and its advice, per path that was left out or could not be done, then the summary.

    ``quiet``: the last two alone. ``stats``: a line per rule instead of findings. ``verbose``: every finding by itself.
    """
    return "".join(f"{line}\n" for line in _lines(result, verbosity))


def paragraph(result: CheckResult) -> str:
    """What was looked at, what was found, and the command to run next."""
    looked = f"{count(result.sources, 'source file')} and {count(result.checkpoints, 'checkpoint')} checked"
    parts = [f"{looked}, {_found(result)}.", *_movable(result)]
    if result.known:
        parts.append(f"{count(result.known, 'finding')} known from the baseline.")
    if result.below:
        parts.append(f"{count(result.below, 'finding')} below level {result.min_level.value} not shown.")
    if result.errors:
        parts.append(f"{count(len(result.errors), 'path')} could not be checked.")
    elif not result.sources and not result.checkpoints:
        parts.append("No source files or checkpoints found under this path.")
    return " ".join([*parts, *_next(result)])


def place(told: Told) -> str:
    """``path:line:column``, the column from 1 as editors count; of a checkpoint its path alone."""
    finding = told.finding
    where = "" if told.in_checkpoint else f":{finding.line}:{finding.column + 1}"
    return f"{printable(finding.path)}{where}"


def left_out(result: CheckResult) -> Iterator[str]:
    """One line per path that was left out or could not be done."""
    for path, reason in result.skipped:
        yield f"{printable(path)}: skipped: {printable(reason)}"
    for path, reason in result.errors:
        yield f"{printable(path)}: error: {printable(reason)}"


def shown(result: CheckResult) -> tuple[list[Told], list[str]]:
    """The findings to print, and a line for each rule whose further notes are counted."""
    first: dict[tuple[object, ...], Told] = {}
    for told in result.told:
        found = told.finding
        first.setdefault((found.path, found.line, found.rule, found.level), told)
    findings, rest = shortened(told.finding for told in result.told)
    entries = [
        dataclasses.replace(first[found.path, found.line, found.rule, found.level], finding=found) for found in findings
    ]
    return entries, [f"{printable(more.path)}: {more.sentence}" for more in rest]


def _lines(result: CheckResult, verbosity: str) -> Iterator[str]:
    if result.both:
        yield both_kept(result.both)
    entries, rest = (list(result.told), []) if verbosity == "verbose" else shown(result)
    if verbosity in ("quiet", "stats"):
        entries, rest = [], []
    if verbosity == "stats":
        yield from stats.lines(told.finding for told in result.told)
    for told in entries:
        finding = told.finding
        yield f"{place(told)}: {finding.rule} {finding.level.value}: {printable(finding.text)}"
        if finding.advice:
            yield f"    {printable(finding.advice)}"
    yield from rest
    yield from left_out(result)
    yield paragraph(result)


def _found(result: CheckResult) -> str:
    failing = len(result.failing)
    notes = len(result.told) - failing
    found = count(failing, "finding") if failing else "no findings"
    return f"{found} and {count(notes, 'note')}" if notes else found


def _movable(result: CheckResult) -> Iterator[str]:
    levels = Counter(told.finding.level for told in result.failing if told.moves)
    moved, review = levels.total(), levels[Level.REVIEW]
    if moved:
        some = f"{moved} of them" if moved < len(result.failing) else "all of them"
        of_all = "it" if len(result.failing) == 1 else some
        yield f"A rewrite would move {of_all}{f', {review} on a stated assumption' if review else ''}."
    read = [told for told in result.failing if told.finding.level in (Level.SAFE, Level.REVIEW) and not told.moves]
    read = [told for told in read if not told.in_checkpoint]
    if read:
        yield f"{count(len(read), 'finding')} to read. A rewrite does not change them."


def _next(result: CheckResult) -> Iterator[str]:
    moves = any(told.moves for told in result.failing)
    if STDIN in result.paths and moves:
        yield "Next: fsdp-migrate rewrite -, with the same text."
    elif moves:
        option = "--retire " if result.both == "retire" else ""
        yield f"Next: fsdp-migrate rewrite {option}--diff {shlex.join(map(printable, result.paths))}"
    elif result.failing:
        rule = next((told for told in result.failing if told.finding.level is Level.MANUAL), result.failing[0])
        yield f"Next: fsdp-migrate rules {rule.finding.rule}"
