"""The command ``rules``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

import sys

import click

from fsdp_migrate.commands.options import FORMAT


@click.command(name="rules", short_help="List the rules, or explain one.")
@click.argument("rule", required=False)
@FORMAT
def rules(rule: str | None, form: str) -> int:
    """List the rules, or explain the RULE with this id, number or name: FSDP102, 102 or sharding-strategy."""
    from fsdp_migrate.report.rulebook import UnknownRule, as_json, explanation, find, listing, pages

    known = pages()
    try:
        wanted = [find(rule, known)] if rule else known
    except UnknownRule as error:
        raise click.ClickException(str(error)) from error
    if form == "json":
        click.echo(as_json(wanted), nl=False)
        return 0
    lines = explanation(wanted[0]) if rule else listing(wanted)
    if rule and sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown("\n".join(lines)))
        return 0
    for line in lines:
        click.echo(line)
    return 0
