"""The command ``rules``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

import sys

import click


@click.command(name="rules", short_help="List the rules, or explain one.")
@click.argument("rule", required=False)
def rules(rule: str | None) -> int:
    """List the rules, or explain the RULE with this id or name."""
    from fsdp_migrate.report.rulebook import UnknownRule, explanation, find, listing, pages

    known = pages()
    try:
        lines = explanation(find(rule, known)) if rule else listing(known)
    except UnknownRule as error:
        raise click.ClickException(str(error)) from error
    if rule and sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown("\n".join(lines)))
        return 0
    for line in lines:
        click.echo(line)
    return 0
