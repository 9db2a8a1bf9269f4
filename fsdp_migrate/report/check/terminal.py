"""A check in colour, for people at a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fsdp_migrate.check.checked import CheckResult
from fsdp_migrate.report import stats
from fsdp_migrate.report.by_file import Entry, closing, grouped, parts
from fsdp_migrate.report.check.text import left_out, paragraph, shown
from fsdp_migrate.report.summary import both_kept
from fsdp_rules.verdict.finding import Level


def show(result: CheckResult, console: Console, verbosity: str = "") -> None:
    """Print the findings of each file, what was left out, and the summary.

    ``verbose``: every finding by itself. ``stats``: a line per rule instead of findings. ``quiet``: none.
    """
    if result.both:
        console.print(Text(both_kept(result.both), style="bold"))
    if verbosity in ("quiet", "stats"):
        for line in stats.lines(told.finding for told in result.told) if verbosity == "stats" else ():
            console.print(Text(line), soft_wrap=True)
    else:
        _show_findings(result, console, verbosity == "verbose")
    for said in left_out(result):
        console.print(Text(said, style="bold red"))
    for text, is_whole in closing(paragraph(result)):
        console.print(text, soft_wrap=is_whole)


def _show_findings(result: CheckResult, console: Console, verbose: bool) -> None:
    entries, rest = (list(result.told), []) if verbose else shown(result)
    files = grouped(Entry(told.finding, told.source, not told.in_checkpoint) for told in entries)
    safe: dict[str, list[str]] = {}
    for told in result.told:
        if told.finding.level is Level.SAFE:
            safe.setdefault(told.finding.path, []).append(told.finding.rule)
    for path, of_file in files.items():
        for part in parts(path, "", of_file, safe.get(path, ()), console, verbose):
            console.print(part)
        console.print()
    for more in rest:
        console.print(Text(more, style="dim"))
