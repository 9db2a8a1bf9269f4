"""The terminal of ``rewrite --interactive``: keys, the editor, and answers that outlive the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fsdp_migrate.pipeline import run
from fsdp_migrate.pipeline.engine import RulesEngine
from fsdp_migrate.pipeline.hunks import Choice
from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.pipeline.request import Request
from fsdp_migrate.report.progress import NoProgress
from fsdp_migrate.report.rewrite.asking import Asker, Quit, finished
from fsdp_migrate.report.summary import count
from fsdp_migrate.tree.answers import Answers


def rewrite_asking(request: Request, engine: RulesEngine) -> RunResult | None:
    """The result of a run whose hunks the user has chosen; None where the user has stopped before the end."""
    answers = Answers(Path(click.get_app_dir("fsdp-migrate")), Path.cwd(), request.paths)
    kept = _choices(answers.read())
    if kept:
        click.echo(f"{count(len(kept), 'answer')} of the last run kept")
    asker = Asker(Console(highlight=False), _key, _edited, kept)
    try:
        result = run.rewrite(request, engine, NoProgress(), asker)
    except (Quit, KeyboardInterrupt, EOFError):
        _keep(answers, asker.choices)
        click.echo(f"\nnothing was written; {count(len(asker.choices), 'answer')} kept: the same command continues")
        return None
    if not result.refused:
        answers.forget()
    if said := finished(asker):
        click.echo(said)
    return result


def _key() -> str:
    """The next key; Enter, which many press after a key, is none."""
    # Keys that are pressed quickly are read as one text.
    while not (key := click.getchar().strip("\r\n")):
        pass
    return key


def _edited(text: str, suffix: str) -> str | None:
    edited = click.edit(text, extension=suffix, require_save=True)
    return edited if edited is None or isinstance(edited, str) else None


def _keep(answers: Answers, choices: dict[str, Choice]) -> None:
    content = {
        key: [choice.taken, None if choice.edited is None else choice.edited.decode()]
        for key, choice in choices.items()
    }
    try:
        answers.keep(content)
    except OSError as error:
        raise click.ClickException(f"could not save the answers: {error.strerror or error}") from error


def _choices(kept: dict[str, Any]) -> dict[str, Choice]:
    choices: dict[str, Choice] = {}
    for key, value in kept.items():
        match value:
            case [bool(taken), None]:
                choices[key] = Choice(taken)
            case [bool(taken), str(edited)]:
                choices[key] = Choice(taken, edited.encode())
    return choices
