"""The command ``trace``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from fsdp_migrate.commands.options import CPU, FORMAT, complete_files, writable

_HELP = """Run a few steps of your training under FSDP1, and record what its code does with sharded models.

COMMAND is how you start the training, torchrun included. It runs unchanged, with a recorder in each rank that is loaded
through the environment. The record contains, for each expression of your code, whether it was a sharded model; where
models are wrapped, with their arguments and units; and which lines ran. It contains no tensor values and no environment
variables, and only the names of command-line options.

\b
  fsdp-migrate trace -- torchrun --nproc-per-node 2 train.py
  fsdp-migrate rewrite --trace trace.json .
  fsdp-migrate trace --merge a.json b.json -o trace.json

--merge combines several records: of a run that trains and one that evaluates and saves, or of the nodes of a run, each
of which records its own ranks. Every source file must be the same in all of them, byte for byte; counts are added.
Ranks without a record are named.

\b
Exit code:
  0  recorded, or merged
  1  recorded, but the program failed, or did not end in time; or a merged
     record lacks ranks
  2  nothing was recorded, or records do not fit together
"""


@click.command(help=_HELP, short_help="Record a run under FSDP1.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_files)
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Optimizer steps to record.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="trace.json",
    show_default=True,
    shell_complete=complete_files,
    help="Write the record to this file.",
)
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop a program that takes longer.")
@click.option("--merge", is_flag=True, help="The arguments are records: merge them into one.")
@CPU
@FORMAT
def trace(
    command: tuple[str, ...], steps: int, output: str, timeout: float | None, merge: bool, cpu: bool, form: str
) -> int:
    from fsdp_migrate.report.document import document
    from fsdp_migrate.report.summary import printable
    from fsdp_migrate.trace.merging import merge as merged
    from fsdp_migrate.trace.record import BadTrace, dumped, load
    from fsdp_migrate.trace.recorded import Traced, traced
    from fsdp_migrate.trace.seen_in_words import as_data, lines, without
    from fsdp_migrate.tree import writing
    from fsdp_migrate.verify.report.runs_progress import shown
    from fsdp_migrate.verify.runs.launch import CannotRun

    target = writable(output, "--output")
    try:
        if merge:
            whole = merged([(Path(name), load(Path(name))) for name in command])
            found = Traced(whole, f"{without(whole)}: the record removes no finding" if whole.missing else "")
        else:
            with shown() as progress:
                found = traced(command, Path.cwd(), steps, timeout, progress, cpu=cpu)
    except (BadTrace, CannotRun) as error:
        raise click.ClickException(str(error)) from error
    try:
        writing.answer(target, dumped(found.trace).encode())
    except OSError as error:
        raise click.ClickException(f"could not write {target}: {error.strerror or error}") from error
    if form == "json":
        content = {"record": str(target), **as_data(found.trace), "problem": found.problem or None}
        click.echo(document("trace summary", content), nl=False)
        return int(bool(found.problem))
    for line in lines(found.trace):
        click.echo(printable(line))
    click.echo(printable(f"written to {target}"))
    if found.problem:
        click.echo("\n".join(printable(line) for line in found.problem.splitlines()), err=True)
    return int(bool(found.problem))
