"""The command ``preflight``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import click

from fsdp_migrate.commands.options import FORMAT, Named, complete_files

_HELP = """Inspect model and optimizer just before the first step, and stop there.

COMMAND is how you start the training, torchrun included. It runs unchanged up to the first optimizer step. The output
shows the units with their bytes, dtypes and ranks, and everything suspicious with its remedy.

\b
  fsdp-migrate preflight -- torchrun --nproc-per-node 2 train.py
  fsdp-migrate preflight --compare -- torchrun ...  with HEAD's units
  fsdp-migrate preflight --measure ours.toml -- torchrun --nproc-per-node 8

The last command runs no program. It measures computing and links of the machine, for tune --machine ours.toml.

\b
Exit code:
  0  nothing is suspicious
  1  something is
  2  it could not run
"""

#: What each rank writes about a model besides what the answer says once.
_ITS_OWN = ("text", "format", "version", "torch", "optimizer")


@click.command(help=_HELP, short_help="Inspect model and optimizer before the first step.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_files)
@FORMAT
@click.option("--compare", is_flag=True, help="Also run the rewritten code of HEAD, and print both, unit by unit.")
@click.option("--to", type=click.Choice(["native", "shim"]), default="native", help="The target of --compare.")
@click.option(
    "--measure",
    metavar="FILE",
    type=Named(path_type=Path, dir_okay=False),
    help="Measure this machine and write the results to FILE.",
)
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop a program that takes longer.")
def preflight(
    command: tuple[str, ...], form: str, compare: bool, to: str, measure: Path | None, timeout: float | None
) -> int:
    if measure is not None:
        return _measure(command, measure, timeout)
    from fsdp_migrate.report.optimizer_notes import optimizer_notes
    from fsdp_migrate.verify.first_step import run, run_both
    from fsdp_migrate.verify.report import side_by_side
    from fsdp_migrate.verify.report.runs_progress import shown
    from fsdp_migrate.verify.runs.launch import CannotRun

    with shown() as progress:
        try:
            if compare:
                before, after = run_both(command, to, timeout, progress)
            else:
                before, after = [], run(command, Path.cwd(), timeout, progress)
        except CannotRun as error:
            raise click.ClickException(str(error)) from error
    for model in after:
        model["notes"] = optimizer_notes(model["optimizer"], model["torch"])
    if form == "json":
        _json(before, after, compare)
    else:
        for model in after:
            click.echo("\n".join([model["text"], *(f"note: {note}" for note in model["notes"])]))
        if compare:
            for line in side_by_side.lines(before, after):
                click.echo(line)
    return int(any(model["suspicions"] for model in after))


def _measure(command: tuple[str, ...], target: Path, timeout: float | None) -> int:
    from fsdp_migrate.tune.machine import BadMachine, machine

    began = target.stat().st_mtime_ns if target.exists() else 0
    try:
        words = (*command, "-m", "fsdp_compat.preflight.measured_machine", str(target))
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=timeout)
        if done.returncode or not target.exists() or target.stat().st_mtime_ns == began:
            raise click.ClickException(f"nothing was measured:\n{done.stderr.strip()}")
        machine(str(target))
    except (OSError, subprocess.TimeoutExpired, BadMachine) as error:
        raise click.ClickException(str(error)) from error
    click.echo(target.read_text(encoding="utf-8"), nl=False)
    return 0


def _json(before: list[dict[str, Any]], after: list[dict[str, Any]], compare: bool) -> None:
    from fsdp_migrate.report.document import document
    from fsdp_migrate.verify.report import side_by_side

    plain = [[{n: v for n, v in model.items() if n not in _ITS_OWN} for model in side] for side in (before, after)]
    if compare:
        one, two = ([side_by_side.with_costs(model) for model in side] for side in plain)
    click.echo(document("preflight", {"before": one, "after": two} if compare else {"models": plain[1]}), nl=False)
