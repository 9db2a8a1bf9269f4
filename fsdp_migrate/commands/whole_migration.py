"""The command ``migrate``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdp_migrate.commands.options import CPU, FORMAT, complete_files, rule_settings, writable
from fsdp_migrate.commands.verdicts import echo

if TYPE_CHECKING:
    from fsdp_migrate.migration.journal import Desk
    from fsdp_migrate.migration.stages import Moved, SettingsOf
    from fsdp_rules.settings import Settings

_HELP = """Move a working FSDP1 training to FSDP2, and prove on your own run that it trains the same.

COMMAND is how you start a few steps of training, torchrun included. It runs the training under FSDP1 in a copy and
records facts that the code alone does not show (trace). It rewrites the files with that record (rewrite --trace). Then
it runs both versions in copies and compares every value of every step (verify). If the runs differ, or the second one
fails, it searches for the edits that cause this (verify --bisect). If their alternative form makes the runs equal, it
writes that form and verifies again. A page at the end shows the rewrite, the equal values, the cost, the places left to
do by hand, and the code that never ran.

\b
  fsdp-migrate migrate -- torchrun --nproc-per-node 2 train.py
  fsdp-migrate migrate --continue      continue after an interruption or a fix
  fsdp-migrate migrate --abort         restore all files

\b
Exit code:
  0  equal, and nothing is left to do by hand
  1  the runs differ, or something is left to do by hand
  2  it could not run; finished work is kept for --continue or --abort
"""


@click.command("migrate", help=_HELP, short_help="Trace, rewrite and verify a training in one command.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
@click.option("--to", type=click.Choice(["native", "shim"]), default="native", help="FSDP2 itself, or fsdp_compat.")
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Optimizer steps of each run.")
@click.option(
    "--link", metavar="PATH", multiple=True, help="Link files that git does not track (data) into the copies."
)
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop a run that takes longer.")
@click.option("--allow-dirty", is_flag=True, help="Also migrate changes that are not committed.")
@click.option("--report", metavar="FILE", help="Write the page, .html, .json or .txt.")
@click.option("--continue", "goes_on", is_flag=True, help="Continue the migration that was started here.")
@click.option("--abort", is_flag=True, help="Restore the rewritten files and end the migration.")
@CPU
@FORMAT
def migrate(
    command: tuple[str, ...],
    to: str,
    steps: int,
    link: tuple[str, ...],
    timeout: float | None,
    allow_dirty: bool,
    report: str | None,
    goes_on: bool,
    abort: bool,
    cpu: bool,
    form: str,
) -> int:
    from fsdp_migrate.migration.journal import ChangedSince, Desk, Journal, NoJournal, Options
    from fsdp_migrate.migration.stages import begin, go_on
    from fsdp_migrate.trace.record import BadTrace
    from fsdp_migrate.tree.git import GitError
    from fsdp_migrate.tree.undoing import NoRun
    from fsdp_migrate.verify.recording.recording import BadRecording
    from fsdp_migrate.verify.report.runs_progress import shown
    from fsdp_migrate.verify.runs import trees
    from fsdp_migrate.verify.runs.launch import CannotRun

    if bool(command) == (goes_on or abort) or (goes_on and abort):
        raise click.UsageError("give the command that starts the training after --, or one of --continue and --abort")
    page = writable(report, "--report") if report else None
    try:
        source = trees.source(Path.cwd())
        desk = Desk(source.root)
        if abort:
            return _abort(desk, form)
        if command and desk.is_open:
            raise click.UsageError(f"a migration was already started here ({desk.folder}): pass --continue or --abort")
        if goes_on:
            journal = desk.read()
        else:
            options = Options(command, to, steps, link, timeout, source.inside.as_posix(), cpu)
            journal = begin(desk, Journal(options), allow_dirty)
        with shown() as progress:
            moved = go_on(desk, journal, _settings(journal.options.to), progress, echo)
    except (CannotRun, BadRecording, BadTrace) as error:
        raise click.ClickException(f"{error}{_kept(desk)}") from error
    except (GitError, NoJournal, NoRun, ChangedSince) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror or error}\n{_NEXT}") from error
    return _end(desk, moved, page, form)


_NEXT = "finished work is kept: resume with fsdp-migrate migrate --continue, or restore all files with --abort"


def _kept(desk: Desk) -> str:
    """What to say of a migration that stopped; one that has done nothing yet is forgotten, to be started otherwise."""
    if desk.is_open and desk.read().stage == "checked":
        desk.close()
    return f"\n{_NEXT}" if desk.is_open else ""


def _settings(to: str) -> SettingsOf:
    from fsdp_migrate.tree import settings

    def of(tree: Path) -> Settings:
        wanted, _ = rule_settings((), (), to, None, None, tree, settings.load(tree))
        return wanted

    return of


def _abort(desk: Desk, form: str) -> int:
    from fsdp_migrate.report.document import document
    from fsdp_migrate.report.summary import count, printable

    files = desk.put_back(desk.read())
    desk.close()
    if form == "json":
        click.echo(document("migrate abort", {"put_back": files}), nl=False)
        return 0
    for file in files:
        click.echo(printable(file))
    click.echo(f"{count(len(files), 'file')} restored; the migration is ended")
    return 0


def _end(desk: Desk, moved: Moved, page: Path | None, form: str) -> int:
    from fsdp_migrate.migration.one_page import lines, rendered
    from fsdp_migrate.report.summary import printable
    from fsdp_migrate.tree import writing
    from fsdp_rules.verdict.finding import Level

    if form == "json":
        click.echo(rendered(".json", moved), nl=False)
    for line in lines(moved) if form == "text" else ():
        click.echo(printable(line))
    if page is not None:
        writing.answer(page, rendered(page.suffix, moved).encode("utf-8", errors="backslashreplace"))
    if moved.verdict.exit_code:
        click.echo(f"the runs differ: {_NEXT}", err=form == "json")
        return 1
    desk.close()
    click.echo("done: review the change with git diff, and commit it", err=form == "json")
    return int(bool(moved.result.of_level(Level.MANUAL)))
