"""How the command ``verify`` answers: on the terminal, and in reports."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdp_migrate.commands.options import writable

if TYPE_CHECKING:
    from fsdp_migrate.verify.report.runs_progress import Progress
    from fsdp_migrate.verify.runs.sides import Wanted
    from fsdp_migrate.verify.verdict import Verdict

_REPORTS = (".html", ".json", ".md")


def report_file(name: str) -> Path:
    """Where a report is to be written that was asked for by this name."""
    file = Path(name)
    if file.suffix not in _REPORTS:
        raise click.UsageError(f"--report {name}: the name must end in {', '.join(_REPORTS[:-1])} or {_REPORTS[-1]}")
    return writable(name, "--report")


def show(verdict: Verdict, files: list[Path], form: str) -> None:
    """Print a verdict, and write it to ``files``."""
    from fsdp_migrate.verify.report import render, verdict_text

    write_reports(verdict, files)
    if form == "json":
        click.echo(render(".json", verdict), nl=False)
        return
    if sys.stdout.isatty():
        from rich.console import Console

        from fsdp_migrate.verify.report import verdict_terminal

        verdict_terminal.show(verdict, Console())
        return
    for line in verdict_text.lines(verdict):
        click.echo(line)


def write_reports(verdict: Verdict, files: list[Path]) -> None:
    """Write a verdict to ``files``."""
    from fsdp_migrate.tree import writing
    from fsdp_migrate.verify.report import render

    for file in files:
        try:
            writing.answer(file, render(file.suffix, verdict).encode("utf-8", errors="backslashreplace"))
        except OSError as error:
            raise click.ClickException(f"could not write {file}: {error.strerror or error}") from error


def show_bisection(wanted: Wanted, progress: Progress, files: list[Path], applies: bool, form: str) -> int:
    """Search for the edits that make the runs differ, and print what is found; the exit code.

    ``applies``: write the rewrite with their other form into the tree, and verify that.
    """
    from dataclasses import replace

    from fsdp_migrate.report.summary import count, printable
    from fsdp_migrate.tree import git
    from fsdp_migrate.verify.bisect.bisecting import apply, bisect
    from fsdp_migrate.verify.comparison import verify
    from fsdp_migrate.verify.report import bisect_text, verdict_json
    from fsdp_migrate.verify.runs import trees

    def say(line: str) -> None:
        if form == "text":
            click.echo(printable(line))

    def answer(written: Sequence[str] = (), verified: Verdict | None = None) -> None:
        if form == "json":
            click.echo(verdict_json.rendered(bisection, written, verified), nl=False)

    bisection = bisect(wanted, lambda tree: trees.asked(tree, wanted.to), bisect_text.watch(echo), progress)
    native, found = bisection.found.native, bisection.found
    if native.verdict is not None:
        write_reports(native.verdict, files)
    for line in bisect_text.lines(bisection):
        say(line)
    if not found.edits:
        answer()
        return native.verdict.exit_code if native.verdict is not None else 2
    if not applies or not bisection.moves_on:
        if bisection.moves_on:
            say("nothing was written: pass --apply to write the rewrite with this form")
        answer()
        return 1
    root = trees.source(Path.cwd()).root
    written = apply(root, bisection, shlex.join(["fsdp-migrate", "verify", "--bisect", "--apply", "--", *wanted.after]))
    say(f"{count(len(written), 'file')} written with this form (fsdp-migrate undo reverts it); verified again:")
    again = replace(wanted, before_ref=wanted.before_ref or "HEAD", after_ref=git.snapshot(root), keep=None)
    try:
        verdict = verify(again, progress)
    except KeyboardInterrupt as error:
        raise click.ClickException("interrupted: this form is written, and was not verified again") from error
    if form == "json":
        write_reports(verdict, files)
        answer(written, verdict)
    else:
        show(verdict, files, form)
    return verdict.exit_code


def echo(line: str) -> None:
    """Say how far a search is, on standard error."""
    from fsdp_migrate.report.summary import printable

    click.echo(printable(line), err=True)
