"""The report as plain lines, for pipes and logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.report import stats
from fsdp_migrate.report.half_migrated import warning
from fsdp_migrate.report.rewrite.run_coverage import by_trace
from fsdp_migrate.report.shorten import shortened
from fsdp_migrate.report.summary import assumed_torch, both_kept, done_to, paragraph, printable
from fsdp_rules.verdict.finding import Finding, Level


def lines(result: RunResult, verbosity: str = "") -> Iterator[str]:
    """One line per rewritten file, per finding that wants a reader, per file that was left out; then the summary.

    Before all of that, what is done with FSDP1's branches beside FSDP2's, the torch that was assumed, and that the
    project is now between FSDP1 and FSDP2. ``verbose``:
    findings of level ``safe`` have lines too, and every finding its own. ``stats``: rules have lines, findings none.
    ``quiet``: neither, and no torch.
    """
    said = (both_kept(result.both), "" if verbosity == "quiet" else assumed_torch(result), warning(result))
    yield from map(printable, filter(None, said))
    if verbosity in ("quiet", "stats"):
        yield from stats.lines(result.findings) if verbosity == "stats" else ()
        yield from map(printable, by_trace(result))
        yield paragraph(result)
        return
    verbose = verbosity == "verbose"
    for file in result.changed:
        yield f"{printable(file.path)}: {done_to(file, result.diff)}{_rules(file)}"
    for level in (*([Level.SAFE] if verbose else []), Level.REVIEW, Level.INFO, Level.MANUAL):
        found = result.of_level(level)
        shown, rest = (found, []) if verbose else shortened(found)
        for finding in shown:
            yield f"{place(finding)}: {finding.rule} {level.value}: {printable(finding.text)}"
            if finding.advice:
                yield f"    {printable(finding.advice)}"
        yield from (f"{printable(more.path)}: {more.sentence}" for more in rest)
    for path, reason in result.skipped:
        yield f"{printable(path)}: skipped: {printable(reason)}"
    yield from map(printable, by_trace(result))
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
