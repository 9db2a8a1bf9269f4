"""The commands about checkpoints; as in :mod:`fsdp_migrate.cli`, each imports what it needs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

_INSPECT_HELP = """Say what the checkpoints at or under PATH hold, and the code that loads them into FSDP2.

PATH is a file of torch.save or safetensors, or a folder: of torch.distributed.checkpoint, of a file per rank, or one
that has such folders in it. Nothing is loaded: no tensor is read and no pickle is run, so that a large checkpoint is as
quick as a small one, and a hostile one harmless. torch need not be installed.

\b
  fsdp-migrate checkpoint inspect out/step_1000
  fsdp-migrate checkpoint inspect --format json model.pt | jq '.checkpoints[0].tensors'

\b
Exit code:
  0  all of it loads into FSDP2
  1  something must be saved anew or found first, or runs code when loaded
  2  it could not be read, or there is no checkpoint
"""


@click.group(short_help="Look into checkpoints.")
def checkpoint() -> None:
    """Look into checkpoints, without loading them."""


@checkpoint.command(help=_INSPECT_HELP, short_help="Say what a checkpoint holds and how it loads.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="For people, or programs.")
@click.option("--all", "everything", is_flag=True, help="Show every tensor, however many there are.")
def inspect(path: Path, form: str, everything: bool) -> int:
    from rich.console import Console

    from fsdp_migrate.checkpoints.judge import judge
    from fsdp_migrate.checkpoints.model import BadCheckpoint
    from fsdp_migrate.checkpoints.opened import open_all
    from fsdp_migrate.report import checkpoints as report
    from fsdp_migrate.report.summary import printable
    from fsdp_rules.finding import Level

    try:
        found = open_all(path)
    except BadCheckpoint as error:
        raise click.ClickException(printable(str(error))) from error
    if not found:
        raise click.ClickException(f"{path}: there is no checkpoint in it")
    if form == "json":
        click.echo(report.render_json(found), nl=False)
    else:
        # Without a terminal there is no width to fit into, and a name cut in two cannot be searched for.
        report.show(found, Console(width=None if sys.stdout.isatty() else 200), everything)
    return int(any(finding.level is Level.MANUAL for one in found for finding in judge(one)))
