"""The report on a terminal: a table by file and rule, then what wants a reader, then the summary.

All text goes through :class:`rich.text.Text`: user code holds square brackets, which markup would swallow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.report.half_migrated import warning
from fsdp_migrate.report.rewrite.text_report import error_lines, place
from fsdp_migrate.report.shorten import shortened
from fsdp_migrate.report.summary import paragraph, printable
from fsdp_rules.verdict.finding import Finding, Level

#: The style of each level.
STYLES = {Level.SAFE: "green", Level.REVIEW: "yellow", Level.MANUAL: "bold red", Level.INFO: "cyan"}
_TITLES = {
    Level.SAFE: "Rewritten with the same numbers",
    Level.REVIEW: "Rewritten with an assumption",
    Level.INFO: "For information",
    Level.MANUAL: "Left to do by hand",
}
_DIFF_STYLES = ((b"+++", "bold"), (b"---", "bold"), (b"@@", "cyan"), (b"+", "green"), (b"-", "red"))


def show(result: RunResult, console: Console, verbose: bool = False) -> None:
    """Print the whole report; if ``verbose``, every finding by itself, also those of level ``safe``."""
    for part in _parts(result, verbose):
        console.print(part)
    # Wrapped by the terminal, so that the command at its end can be copied whole.
    console.print(Text(paragraph(result)), soft_wrap=True)


def show_diff(lines: Iterable[bytes], console: Console) -> None:
    """Print a diff in colour, one line as one line."""
    for line in lines:
        style = next((style for start, style in _DIFF_STYLES if line.startswith(start)), "")
        text = line.decode("utf-8", errors="backslashreplace").rstrip("\r\n").expandtabs()
        console.print(Text(printable(text), style=style), soft_wrap=True)


def _parts(result: RunResult, verbose: bool) -> Iterator[RenderableType]:
    if said := warning(result):
        yield Text(printable(said), style="bold red")
        yield Text()
    if result.findings:
        yield _table(result)
    for level, title in _TITLES.items():
        if verbose or level is not Level.SAFE:
            yield from _listing(title, result.of_level(level), verbose)
    for path, reason in result.skipped:
        yield Text(f"{printable(path)}: skipped: {printable(reason)}")
    for line in error_lines(result):
        yield Text(line, style="bold red")
    yield Text()


def _table(result: RunResult) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("File", "Rule", "Name", "Level"):
        table.add_column(Text(title))
    table.add_column(Text("Count"), justify="right")
    for file in result.with_fsdp1:
        counts = Counter((finding.rule, finding.name, finding.level) for finding in file.findings)
        shown = printable(file.path)
        for (rule, name, level), number in sorted(counts.items()):
            table.add_row(
                Text(shown), Text(rule), Text(name), Text(level.value, style=STYLES[level]), Text(f"{number}")
            )
            shown = ""
    return table


def _listing(title: str, findings: list[Finding], verbose: bool) -> Iterator[Text]:
    if not findings:
        return
    yield Text()
    yield Text(title, style="bold")
    shown, rest = (findings, []) if verbose else shortened(findings)
    for finding in shown:
        style = STYLES[finding.level]
        yield Text.assemble((place(finding), "bold"), " ", (finding.rule, style), f" {printable(finding.text)}")
        if finding.advice:
            yield Text(f"    {printable(finding.advice)}", style="dim")
    yield from (Text(f"{printable(more.path)}: {more.sentence}", style="dim") for more in rest)
