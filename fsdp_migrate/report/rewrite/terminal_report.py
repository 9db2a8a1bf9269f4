"""The report on a terminal: file by file what was done and found, then the summary.

All text goes through :class:`rich.text.Text`: user code holds square brackets, which markup would swallow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from fsdp_migrate.pipeline.lines import source_line
from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.report.by_file import Entry, closing, parts
from fsdp_migrate.report.half_migrated import warning
from fsdp_migrate.report.rewrite.text_report import error_lines, lines
from fsdp_migrate.report.shorten import shortened
from fsdp_migrate.report.summary import assumed_torch, both_kept, done_to, paragraph, printable
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed

_DIFF_STYLES = ((b"+++", "bold"), (b"---", "bold"), (b"@@", "cyan"), (b"+", "green"), (b"-", "red"))


def show(result: RunResult, console: Console, verbosity: str = "") -> None:
    """Print the whole report.

    ``verbose``: every finding by itself, also those of level ``safe``. ``stats``: a line per rule instead of findings.
    ``quiet``: none.
    """
    if verbosity in ("quiet", "stats"):
        for line in error_lines(result):
            console.print(Text(line, style="bold red"))
        for line in [*lines(result, verbosity)][:-1]:
            console.print(Text(line))
    else:
        for part in _parts(result, console, verbosity == "verbose"):
            console.print(part)
    for text, is_whole in closing(paragraph(result)):
        console.print(text, soft_wrap=is_whole)


def show_diff(lines: Iterable[bytes], console: Console) -> None:
    """Print a diff in colour, one line as one line."""
    for line in lines:
        style = next((style for start, style in _DIFF_STYLES if line.startswith(start)), "")
        text = line.decode("utf-8", errors="backslashreplace").rstrip("\r\n").expandtabs()
        console.print(Text(printable(text), style=style), soft_wrap=True)


def _parts(result: RunResult, console: Console, verbose: bool) -> Iterator[RenderableType]:
    if said := both_kept(result.both):
        yield Text(said, style="bold")
        yield Text()
    if said := assumed_torch(result):
        yield Text(said)
        yield Text()
    if said := warning(result):
        yield Text(printable(said), style="bold red")
        yield Text()
    for file in result.with_fsdp1:
        findings, rest = (list(file.findings), []) if verbose else shortened(file.findings)
        now = file.result.source if isinstance(file.result, Changed) and not result.diff else file.before
        entries = [Entry(finding, source_line(now, finding.line)) for finding in findings]
        said = done_to(file, result.diff) if isinstance(file.result, Changed) else ""
        safe = [finding.rule for finding in file.findings if finding.level is Level.SAFE]
        yield from parts(file.path, said, entries, safe, console, verbose)
        yield from (Text(f"{printable(more.path)}: {more.sentence}", style="dim") for more in rest)
        yield Text()
    for path, reason in result.skipped:
        yield Text(f"{printable(path)}: skipped: {printable(reason)}")
    for line in error_lines(result):
        yield Text(line, style="bold red")
    if result.skipped or result.errors:
        yield Text()
