"""The text format in colour, for people at a terminal; user code holds square brackets, so nothing here is markup."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fsdp_migrate.check.checked import CheckResult
from fsdp_migrate.report.check.text import left_out, paragraph, place, shown
from fsdp_migrate.report.rewrite.terminal_report import STYLES
from fsdp_migrate.report.summary import printable


def show(result: CheckResult, console: Console, verbose: bool = False) -> None:
    """Print what :func:`fsdp_migrate.report.check.text.render` gives, wrapped by the terminal."""
    entries, rest = (list(result.told), []) if verbose else shown(result)
    for told in entries:
        finding = told.finding
        rule = (f"{finding.rule} {finding.level.value}", STYLES[finding.level])
        line = Text.assemble((f"{place(told)}:", "bold"), " ", rule, f": {printable(finding.text)}")
        console.print(line, soft_wrap=True)
        if finding.advice:
            console.print(Text(f"    {printable(finding.advice)}", style="dim"), soft_wrap=True)
    for more in rest:
        console.print(Text(more, style="dim"), soft_wrap=True)
    for said in left_out(result):
        console.print(Text(said, style="bold red"), soft_wrap=True)
    console.print(Text(paragraph(result)), soft_wrap=True)
