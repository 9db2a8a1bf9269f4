"""The verdict on a terminal: a table of the questions, the first difference, the cost, the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fsdp_migrate.verify.report.facts import WITHIN, by_themselves, headline, place, readable, side, size, spread
from fsdp_migrate.verify.verdict import Verdict


def show(verdict: Verdict, console: Console) -> None:
    """Print it."""
    rows = spread(verdict)
    columns = ["equal", *([WITHIN] if verdict.rounded else []), "different"]
    questions = Table("compared", "values", *columns, title="before and after")
    for column in questions.columns[1:]:
        column.justify = "right"
    for row in rows:
        counted = [str(row.compared or ""), str(row.equal if row.compared else "")]
        counted += [str(row.rounded or "")] if verdict.rounded else []
        questions.add_row(row.question, *counted, Text(str(row.different), style="red" if row.different else "green"))
    console.print(questions)
    first = verdict.first
    if first is not None:
        told = size(first.gap)
        console.print(
            Text.assemble(("first difference: ", "bold"), place(verdict, first), f" ({told})" if told else "")
        )
        console.print(Text(f"  before: {first.before}\n  after:  {first.after}"))
    if verdict.cause is not None:
        rule = f" ({verdict.cause.rule})" if verdict.cause.rule else ""
        console.print(Text.assemble(("cause: ", "bold"), verdict.cause.message, rule, f"\n  {verdict.cause.cure}"))
    for module, what in by_themselves(verdict) or ():
        console.print(Text.assemble(("differs by itself: ", "bold"), f"{module}: {what}"))
    for note in verdict.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    before, after = side(verdict.comparison.before), side(verdict.comparison.after)
    cost = Table("cost", "before", "after")
    if before.seconds is not None and after.seconds is not None:
        cost.add_row("seconds per step", f"{before.seconds:.3f}", f"{after.seconds:.3f}")
    cost.add_row(f"peak {before.peak_of}", readable(before.peak), readable(after.peak))
    cost.add_row("collectives per step", str(before.collectives), str(after.collectives))
    cost.add_row("their bytes", readable(before.nbytes), readable(after.nbytes))
    console.print(cost)
    console.print(Text(headline(verdict), style="bold green" if first is None else "bold red"))
