"""The commands about checkpoints; as in :mod:`fsdp_migrate.cli`, each imports what it needs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from fsdp_migrate.commands.options import FORMAT, Named

_INSPECT_HELP = """Show what the checkpoints at or under PATH contain, and the code that loads them into FSDP2.

PATH is a file of torch.save or safetensors, or a folder: one of torch.distributed.checkpoint, one with a file per rank,
or one that contains such folders. Nothing is loaded: no tensor is read and no pickle is executed, so a large checkpoint
takes no longer than a small one, and a malicious one is harmless. torch need not be installed.

\b
  fsdp-migrate checkpoint inspect out/step_1000
  fsdp-migrate checkpoint inspect --format json model.pt | jq .checkpoints[0]

\b
Exit code:
  0  all of it loads into FSDP2
  1  something must be converted, is incomplete, or runs code when loaded
  2  it could not be read, or there is no checkpoint
"""


_CONVERT_HELP = """Convert checkpoint SRC to DST, in a format that FSDP2 loads.

It runs in one process, without a process group, a GPU or the model's code. It reads one tensor at a time, so memory for
the two largest tensors is enough. No pickle is executed. SRC is only read. DST must not exist yet. It appears only
after everything has been written, read again and compared with SRC.

\b
  --to dcp          a folder of torch.distributed.checkpoint (needs torch)
  --to safetensors  only the model, as Hugging Face's libraries store it
  --to full         one file, for torch.load (needs torch)

\b
  fsdp-migrate checkpoint convert out/rank_files new --to dcp
  fsdp-migrate checkpoint convert out/step_1000 model --to safetensors
  fsdp-migrate checkpoint convert --dry-run out/step_1000 all.pt --to full

Flat parameters (LOCAL_STATE_DICT) need --template, because they contain neither names nor shapes: a state dict of the
model, or a JSON file of names and shapes in the order of model.named_parameters(). If the rank files contain the order,
any safetensors file of the model, or an optimizer keyed by name next to them, is enough. optimizer.state_dict() needs
--groups: its keys are numbers.

--names renames the tensors of safetensors: from a JSON file {"old": "new", ...}, or with your own function, which is
imported from the current directory and called with each name.

Differences from the source (wrapper prefixes in names, for example) are printed. If a key cannot be converted, the
command stops with the reason; --leave-out KEY continues without it.

\b
Exit code:
  0  written, or with --dry-run: could be
  2  not written
"""
_VERIFY_HELP = """Read all tensors of the checkpoints at or under PATH and compare them with their digests.

These are the CRC-32 that torch.save keeps of each storage, in its files and in those of torch.distributed.checkpoint,
and the SHA-256 of each tensor in the manifest that `checkpoint convert` writes. Safetensors have digests only in a
manifest. Nothing is unpickled.

\b
  fsdp-migrate checkpoint verify out/step_1000

\b
Exit code:
  0  everything with a digest is as it was written
  1  something is not, or is incomplete
  2  it could not be read, there is no checkpoint, or one has no digests
"""
_SIZES = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def _nbytes(context: click.Context, option: click.Parameter, value: str) -> int:
    number, unit = value[:-2].strip(), value[-2:].upper()
    if unit not in _SIZES or not number.isdecimal() or not int(number):
        raise click.BadParameter(f"invalid size {value!r}: use for example 5GB, 500MB or 100KB", context, option)
    return int(number) * _SIZES[unit]


@click.group(short_help="Inspect and convert checkpoints.")
def checkpoint() -> None:
    """Look into checkpoints without loading them, and convert them to a format that FSDP2 loads."""


@checkpoint.command(help=_INSPECT_HELP, short_help="Show what a checkpoint contains and how it loads.")
@click.argument("path", type=Named(path_type=Path))
@FORMAT
@click.option("--all", "everything", is_flag=True, help="Show every tensor.")
@click.option("--digests", is_flag=True, help="Read the tensors too, and compare their CRC-32.")
def inspect(path: Path, form: str, everything: bool, digests: bool) -> int:
    from rich.console import Console

    from fsdp_migrate.checkpoints.entries import BadCheckpoint
    from fsdp_migrate.checkpoints.judge.judge import judge
    from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
    from fsdp_migrate.checkpoints.read.digests import with_damage
    from fsdp_migrate.checkpoints.read.find import SPECIAL
    from fsdp_migrate.report.checkpoint import inspected as report
    from fsdp_migrate.report.summary import printable
    from fsdp_rules.verdict.finding import Level

    def pass_over(special: Path) -> None:
        click.echo(printable(f"{special}: skipped: {SPECIAL}"), err=True)

    try:
        found = open_all(path, pass_over)
        found = [with_damage(one) for one in found] if digests else found
    except BadCheckpoint as error:
        raise click.ClickException(printable(str(error))) from error
    if not found:
        raise click.ClickException(f"{path}: contains no checkpoint")
    if form == "json":
        click.echo(report.render_json(found), nl=False)
    else:
        # Without a terminal there is no width to fit into, and a name cut in two cannot be searched for.
        report.show(found, Console(width=None if sys.stdout.isatty() else 200), everything)
    return int(any(finding.level is Level.MANUAL for one in found for finding in judge(one)))


@checkpoint.command(help=_VERIFY_HELP, short_help="Compare the tensors of a checkpoint with their digests.")
@click.argument("path", type=Named(path_type=Path))
@FORMAT
def verify(path: Path, form: str) -> int:
    try:
        from fsdp_migrate.checkpoints.convert.verifying import verified
    except ModuleNotFoundError as error:
        raise click.ClickException(f"verify needs {error.name}: {_installed_with('convert')}") from error
    from fsdp_migrate.checkpoints.entries import BadCheckpoint
    from fsdp_migrate.report.document import document
    from fsdp_migrate.report.progress import bytes_shown
    from fsdp_migrate.report.summary import printable

    try:
        with bytes_shown() as progress:
            verdicts = verified(path, progress)
    except BadCheckpoint as error:
        raise click.ClickException(printable(str(error))) from error
    if not verdicts:
        raise click.ClickException(f"{path}: contains no checkpoint")
    if form == "json":
        told = [{**asdict(verdict), "path": verdict.path.as_posix()} for verdict in verdicts]
        click.echo(document("checkpoint verify", {"checkpoints": told}), nl=False)
    for verdict in verdicts if form == "text" else ():
        for line in verdict.problems or (verdict.said,):
            click.echo(printable(f"{verdict.path}: {line}"))
    if any(verdict.problems for verdict in verdicts):
        return 1
    return 0 if all(verdict.compared for verdict in verdicts) else 2


@checkpoint.command(help=_CONVERT_HELP, short_help="Convert a checkpoint to another format.")
@click.argument("source", metavar="SRC", type=Named(path_type=Path))
@click.argument("target", metavar="DST", type=Named(path_type=Path))
@click.option("--to", type=click.Choice(["dcp", "safetensors", "full"]), required=True, help="The format of DST.")
@click.option(
    "--template",
    metavar="FILE",
    type=Named(path_type=Path),
    help="Names and shapes of the parameters in flat parameters: a JSON file, a state dict or safetensors.",
)
@click.option(
    "--groups",
    metavar="FILE",
    type=Named(path_type=Path),
    help="A JSON file with the parameter names of each param group, for an optimizer keyed by number.",
)
@click.option(
    "--names",
    metavar="FILE|MODULE:FUNCTION",
    help="New names for tensors in safetensors: a JSON file of old and new names, or a function from old to new.",
)
@click.option(
    "--leave-out", metavar="KEY", multiple=True, help="Leave out KEY and everything under it. May be repeated."
)
@click.option(
    "--adamw", "decoupled", flag_value="adamw", help="The param groups are AdamW's: add decoupled_weight_decay."
)
@click.option("--adam", "decoupled", flag_value="adam", help="The param groups are Adam's: add decoupled_weight_decay.")
@click.option(
    "--shard-size",
    callback=_nbytes,
    metavar="SIZE",
    default="5GB",
    show_default=True,
    help="Maximum size of a safetensors file.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@FORMAT
def convert(
    source: Path,
    target: Path,
    to: str,
    template: Path | None,
    groups: Path | None,
    names: str | None,
    leave_out: tuple[str, ...],
    decoupled: str | None,
    shard_size: int,
    dry_run: bool,
    form: str,
) -> int:
    try:
        from fsdp_migrate.checkpoints.convert import convert as run
    except ModuleNotFoundError as error:
        raise click.ClickException(f"convert needs {error.name}: {_installed_with('convert')}") from error
    from fsdp_migrate.checkpoints.convert.plan import Target, Wanted
    from fsdp_migrate.checkpoints.convert.state import CannotConvert
    from fsdp_migrate.checkpoints.entries import BadCheckpoint
    from fsdp_migrate.report.checkpoint import converted as report
    from fsdp_migrate.report.progress import bytes_shown
    from fsdp_migrate.report.summary import printable

    if names is not None and to != "safetensors":
        raise click.UsageError("--names needs --to safetensors: the other formats keep the names of the model")
    is_adamw = None if decoupled is None else decoupled == "adamw"
    wanted = Wanted(Target(to), template, groups, leave_out, is_adamw, names)
    try:
        if dry_run:
            state = run.prepare(source, target, wanted)
            click.echo(report.as_json(state, target) if form == "json" else report.prepared(state, target))
            return 0
        with bytes_shown() as progress:
            done = run.convert(source, target, wanted, progress, shard_size)
    except (BadCheckpoint, CannotConvert) as error:
        raise click.ClickException(printable(str(error))) from error
    except ModuleNotFoundError as error:
        raise click.ClickException(f"--to {to} needs {error.name}: {_installed_with('torch')}") from error
    except OSError as error:
        raise click.ClickException(printable(f"{error.filename or target}: {error.strerror or error}")) from error
    click.echo(report.as_json(done, target) if form == "json" else report.converted(done))
    return 0


def _installed_with(extra: str) -> str:
    return f"install fsdp-migrate with its extra [{extra}]"
