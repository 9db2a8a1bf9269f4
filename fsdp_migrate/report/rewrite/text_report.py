"""The report as plain lines, for pipes and logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.report.half_migrated import warning
from fsdp_migrate.report.shorten import shortened
from fsdp_migrate.report.summary import paragraph, printable
from fsdp_rules.verdict.finding import Finding, Level


def lines(result: RunResult) -> Iterator[str]:
    """One line per rewritten file, per finding that wants a reader, per file that was left out; then the summary.

    Before all of that, that the project is now between FSDP1 and FSDP2, where it is.
    """
    if said := warning(result):
        yield printable(said)
    for file in result.changed:
        yield f"{printable(file.path)}: {'would be rewritten' if result.diff else 'rewritten'}{_rules(file)}"
    for level in (Level.REVIEW, Level.INFO, Level.MANUAL):
        shown, rest = shortened(result.of_level(level))
        for finding in shown:
            yield f"{place(finding)}: {finding.rule} {level.value}: {printable(finding.text)}"
            if finding.advice:
                yield f"    {printable(finding.advice)}"
        yield from (f"{printable(more.path)}: {more.sentence}" for more in rest)
    for path, reason in result.skipped:
        yield f"{printable(path)}: skipped: {printable(reason)}"
    yield paragraph(result)


def error_lines(result: RunResult) -> Iterator[str]:
    """One line per file that could not be done."""
    for path, error in result.errors:
        yield f"{printable(path)}: error: {printable(error)}"


def place(finding: Finding) -> str:
    """``path:line:column``, the column from 1 as editors count."""
    return f"{printable(finding.path)}:{finding.line}:{finding.column + 1}"


def _rules(file: FileOutcome) -> str:
    counts = Counter(finding.rule for finding in file.findings if finding.level in (Level.SAFE, Level.REVIEW))
    return f" ({', '.join(f'{rule} x{number}' for rule, number in sorted(counts.items()))})" if counts else ""
