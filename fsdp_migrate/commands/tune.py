"""The command ``tune``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from fsdp_migrate.commands.options import complete_files

_HELP = """Predict the cost of other FSDP2 layouts before the first step.

COMMAND is how you start the training, torchrun included. It runs unchanged through one forward and backward. From this
run, the command computes the gathers, bytes, memory and time of each layout: the program's own, one unit per block,
embedding and head as units, no resharding after the forward, and hybrid meshes. It prints all layouts, the fastest that
fits first, with their advantages, and the code of the best one.

No layout changes a loss in fp32, unless its line says that gradients are summed in a different order.

\b
  fsdp-migrate tune -- torchrun --nproc-per-node 2 train.py
  fsdp-migrate tune --ranks 64 --machine h100-sxm -- torchrun ...
  fsdp-migrate tune --memory 40 -- torchrun ...  what fits into 40 GiB
  fsdp-migrate tune --seconds 0.8 -- torchrun ...  a measured step
  fsdp-migrate tune --show "one unit" -- torchrun ...  its code

\b
Exit code:
  0  the program's layout is the best
  1  another one is better, or none fits
  2  it could not run
"""


@click.command(help=_HELP, short_help="Predict time and memory of other layouts.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_files)
@click.option(
    "--memory", type=click.FloatRange(min=0, min_open=True), metavar="GIB", help="Memory that a rank may use."
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Plan for this number of ranks instead of the running ones.",
)
@click.option("--machine", "wanted", metavar="NAME", help="A known machine, or a TOML file. [default: by the device]")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="The current time of forward and backward."
)
@click.option("--show", metavar="LAYOUT", help="Print the code of this layout.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop a program that takes longer.")
def tune(
    command: tuple[str, ...],
    memory: float | None,
    ranks: int | None,
    wanted: str | None,
    seconds: float | None,
    show: str | None,
    form: str,
    timeout: float | None,
) -> int:
    from fsdp_migrate.report.document import document
    from fsdp_migrate.tune import tuning_text
    from fsdp_migrate.tune.machine import BadMachine, machine
    from fsdp_migrate.tune.present import present
    from fsdp_migrate.tune.ranking import calibrated, ranking
    from fsdp_migrate.verify.first_step import timed
    from fsdp_migrate.verify.report.runs_progress import shown
    from fsdp_migrate.verify.runs.launch import CannotRun

    try:
        # Before the program runs, which takes long.
        given = machine(wanted) if wanted else None
        with shown() as progress:
            values = timed(command, Path.cwd(), timeout, progress)
        found = present(values, ranks)
        here = given or machine(found.machine or "h100-sxm")
        if seconds is not None:
            # Of the ranks that run now, whatever ranks are planned for.
            here = calibrated(present(values), here, seconds)
    except (CannotRun, BadMachine, ValueError) as error:
        raise click.ClickException(str(error)) from error
    limit = round(memory * 2**30) if memory else here.memory
    order = ranking(found, here, limit)
    chosen = order.best if order.best is not order.now else None
    if show is not None:
        chosen = next((row for row in order.ranked if row.name == show), None)
        if chosen is None:
            raise click.ClickException(f"no layout is called {show!r}: {', '.join(row.name for row in order.ranked)}")
    if form == "json":
        click.echo(document("tune", tuning_text.plain(order, found, here, limit, chosen)), nl=False)
    else:
        for line in tuning_text.lines(order, found, here, limit, chosen):
            click.echo(line)
    return int(order.best is not order.now)
