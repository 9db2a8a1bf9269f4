"""The command ``verify``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from fsdp_migrate.commands.options import CPU, FORMAT, PLAN, Named, complete_files
from fsdp_migrate.commands.verdicts import report_file, show, show_bisection

_HELP = """Prove on your own training run that the migrated code trains the same, bit for bit.

COMMAND starts a few steps of training, including torchrun. It runs unchanged, with a recorder in each rank that is
loaded through the environment. The program needs torch; this command does not.

\b
  HEAD's code against its rewrite:
    fsdp-migrate verify -- torchrun --nproc-per-node 2 train.py
  the same against fsdp_compat:
    fsdp-migrate verify --to shim -- torchrun ...
  two ways to start one program, or two checkouts:
    fsdp-migrate verify --before 'CMD1' --after 'CMD2'
    fsdp-migrate verify --before-dir OLD --after-dir NEW -- CMD
  a commit against the working tree:
    fsdp-migrate verify --before-ref v1.2 -- CMD
  find the edits that make the runs differ, and write an alternative form:
    fsdp-migrate verify --bisect [--apply] -- CMD
  a run that resumes from what the old code saved:
    fsdp-migrate verify --resume 3 -- torchrun ... train.py
  only record, with any launcher, and only compare:
    fsdp-migrate verify record OUT -- CMD
    fsdp-migrate verify compare OUT1 OUT2

--bisect repeats the rewrite with some edits in an alternative form (a helper of fsdp_compat, or the FSDP1 code on
fsdp_compat) and halves the set of edits until the smallest remains, in at most 2 log2(edits) + 4 runs.

The program stops after --steps optimizer steps. The recording has each rank's data, losses and norms, and each
parameter's gradient, weight and optimizer state, as digests that do not depend on the sharding.

\b
Exit code:
  0  equal: bit for bit, or within the noise that was measured
  1  different
  2  it could not be run or compared
"""


class _Group(click.Group):
    """``record`` and ``compare`` are commands; everything else is a comparison itself."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in self.commands:
            return super().resolve_command(context, args)
        return "run", self.commands["run"], args

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(context, args)


_REPORT = click.option("--report", metavar="FILE", shell_complete=complete_files, multiple=True,
                       help="Write a report, .html, .json or .md; may be repeated.")  # fmt: skip


def _recording_options(function: Any) -> Any:
    for option in (
        click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Steps to record."),
        click.option("--seed", type=int, metavar="N", help="Seed all generators when torch is imported."),
        click.option("--deep", is_flag=False, flag_value=1, default=0, type=click.IntRange(min=0), metavar="[N]",
                     help="Also record the inputs and outputs of every module, in the first step or the first N."),
        click.option("--timeout", type=float, metavar="SECONDS", help="Stop a run that takes longer."),
    ):  # fmt: skip
        function = option(function)
    return function


@click.group(cls=_Group, help=_HELP, short_help="Prove that the migrated code trains the same.")
def verify() -> None:
    return


@verify.command(hidden=True, context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
@click.option("--to", type=click.Choice(["native", "shim"]), default="native", help="The target of rewrite.")
@click.option("--before", metavar="CMD", help="The command for the old run.")
@click.option("--after", metavar="CMD", help="The command for the new run.")
@click.option("--before-dir", metavar="DIR", type=Named(path_type=Path, exists=True, file_okay=False))
@click.option("--after-dir", metavar="DIR", type=Named(path_type=Path, exists=True, file_okay=False))
@click.option("--before-ref", metavar="REF", help="The commit to compare the working tree with.")
@click.option("--repeat/--no-repeat", default=True, help="Run the old code twice to measure noise (default: yes).")
@_REPORT
@click.option("--keep", metavar="DIR", type=Named(path_type=Path), help="Keep copies, recordings and logs in DIR.")
@click.option(
    "--link",
    metavar="PATH",
    shell_complete=complete_files,
    multiple=True,
    help="Link files that git does not track (data) into the copies.",
)
@click.option("--tolerance", type=float, metavar="REL", help="Call smaller relative differences equal.")
@click.option(
    "--feed",
    is_flag=True,
    help="If the runs differ, run the new code again and feed each module the inputs of the old run, to find the "
    "modules that differ by themselves (implies --deep).",
)
@click.option(
    "--resume",
    type=click.IntRange(min=1),
    metavar="STEP",
    help="Stop the old run once it has saved after STEP, and resume from there with the new code.",
)
@click.option("--bisect", is_flag=True, help="If the runs differ or the new code fails, find the edits that cause it.")
@click.option(
    "--apply",
    is_flag=True,
    help="With --bisect: write the rewrite in the form that makes the runs equal, and verify again.",
)
@click.option("--save-with", metavar="CMD", help="The command for the run that saves, if it is different.")
@click.option("--resume-with", metavar="CMD", help="The command for the run that resumes, if it is different.")
@PLAN
@_recording_options
@CPU
@FORMAT
def run(
    command: tuple[str, ...],
    to: str,
    before: str | None,
    after: str | None,
    before_dir: Path | None,
    after_dir: Path | None,
    before_ref: str | None,
    repeat: bool,
    report: tuple[str, ...],
    keep: Path | None,
    link: tuple[str, ...],
    tolerance: float | None,
    feed: bool,
    resume: int | None,
    bisect: bool,
    apply: bool,
    save_with: str | None,
    resume_with: str | None,
    plan: Any,
    steps: int,
    seed: int | None,
    deep: int,
    timeout: float | None,
    cpu: bool,
    form: str,
) -> int:
    """Run before and after, and compare."""
    from fsdp_migrate.verify.comparison import verify
    from fsdp_migrate.verify.recording.recording import BadRecording
    from fsdp_migrate.verify.report.planned_costs import with_plan
    from fsdp_migrate.verify.report.runs_progress import shown
    from fsdp_migrate.verify.resuming import resume as run_resumed
    from fsdp_migrate.verify.runs.launch import CannotRun
    from fsdp_migrate.verify.runs.sides import Recorded, Wanted

    files = [report_file(name) for name in report]
    if (before is None) != (after is None) or (before_dir is None) != (after_dir is None):
        raise click.UsageError("--before and --after, and --before-dir and --after-dir, come in pairs")
    if before is None and not command:
        raise click.UsageError("give the command that starts the training, after --")
    if before is not None and command:
        raise click.UsageError("give the command once: after --, or as --before and --after")
    if resume is None and (save_with is not None or resume_with is not None):
        raise click.UsageError("--save-with and --resume-with need --resume, which sets the step")
    if apply > bisect or (bisect and (before or before_dir or resume or feed or to == "shim")):
        raise click.UsageError("--bisect compares a commit with its rewrite, and --apply needs --bisect")
    commands = tuple(tuple(shlex.split(c)) for c in (before, after) if c is not None) or (command, command)
    if resume_with is not None:
        commands = (commands[0], tuple(shlex.split(resume_with)))
    wanted = Wanted(
        before=commands[0], after=commands[1], in_place=before is not None and before_dir is None, to=to,
        before_dir=before_dir, after_dir=after_dir, before_ref=before_ref, link=link, repeat=repeat,
        recorded=Recorded(steps, max(deep, int(feed)), seed, feed, cpu), timeout=timeout, keep=keep,
        tolerance=tolerance,
    )  # fmt: skip
    with shown() as progress:
        try:
            if bisect:
                return show_bisection(wanted, progress, files, apply, form)
            if resume is None:
                verdict = verify(wanted, progress)
            else:
                saving = tuple(shlex.split(save_with)) if save_with is not None else wanted.before
                verdict = run_resumed(wanted, resume, saving, progress)
        except (CannotRun, BadRecording) as error:
            raise click.ClickException(str(error)) from error
    verdict = with_plan(verdict, plan)
    show(verdict, files, form)
    return verdict.exit_code


@verify.command(short_help="Run a training and record it in OUT.")
@click.argument("out", metavar="OUT", type=Named(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_files)
@click.option("--stop/--no-stop", default=True, help="End the program after the last recorded step (default: yes).")
@click.option("--rounded", nargs=2, metavar="BEFORE AFTER", type=Named(path_type=Path),
              help="Add rounding as large as the first difference between these two recordings.")  # fmt: skip
@_recording_options
@CPU
@FORMAT
def record(
    out: Path,
    command: tuple[str, ...],
    stop: bool,
    rounded: tuple[Path, Path] | None,
    steps: int,
    seed: int | None,
    deep: int,
    timeout: float | None,
    cpu: bool,
    form: str,
) -> int:
    """Run COMMAND with the recorder in each rank; one file per rank is written to OUT, which must be new or empty.

    On several nodes, record each node in its own subfolder (OUT/node-0, OUT/node-1), and compare the parent folder.
    """
    from fsdp_migrate.report.document import document
    from fsdp_migrate.report.summary import count
    from fsdp_migrate.verify.compare.noise import NO_ROUNDING
    from fsdp_migrate.verify.comparison import shown_by
    from fsdp_migrate.verify.recorder.orders import Orders
    from fsdp_migrate.verify.recording.read import read
    from fsdp_migrate.verify.recording.recording import BadRecording, OtherRanks
    from fsdp_migrate.verify.report.runs_progress import shown
    from fsdp_migrate.verify.runs.launch import CannotRun, Run
    from fsdp_migrate.verify.runs.launch import run as launch

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise click.UsageError(f"{out} is not an empty folder: recordings are not mixed")
    with shown() as progress:
        try:
            given = shown_by(*rounded) if rounded else NO_ROUNDING
            out.mkdir(parents=True, exist_ok=True)
            orders = Orders(
                str(out.resolve()), steps, stop, deep, seed, scale=given.scale, rounding=given.sizes, cpu=cpu
            )
            launch(Run("", command, Path.cwd(), out / "output.log", orders), timeout, progress.begin("record", steps))
            recording = read(out)
            found, world = recording.world, recording.world
            recorded = f"{count(len(recording.steps), 'step')} on {count(world, 'rank')} recorded in {out}"
        except OtherRanks as part:
            if not part.is_node:
                raise click.ClickException(str(part)) from part
            found, world = part.found, part.world
            recorded = (
                f"{part.found} of {part.world} ranks recorded in {out}, all on this node: "
                "copy the files of the other nodes there before you compare"
            )
        except (CannotRun, BadRecording) as error:
            raise click.ClickException(str(error)) from error
    content = {"folder": out.as_posix(), "ranks": found, "world": world}
    click.echo(document("verify record", content).rstrip() if form == "json" else recorded)
    return 0


@verify.command(short_help="Compare two recordings.")
@click.argument("before", metavar="BEFORE", type=Named(path_type=Path))
@click.argument("after", metavar="AFTER", type=Named(path_type=Path))
@click.option("--again", metavar="DIR", type=Named(path_type=Path), help="A second recording of the same code.")
@click.option("--rounded", metavar="DIR", type=Named(path_type=Path), help="A recording made by record --rounded.")
@_REPORT
@click.option("--tolerance", type=float, metavar="REL", help="Call smaller relative differences equal.")
@FORMAT
def compare(
    before: Path,
    after: Path,
    again: Path | None,
    rounded: Path | None,
    report: tuple[str, ...],
    tolerance: float | None,
    form: str,
) -> int:
    """Compare two recordings from any source."""
    from fsdp_migrate.verify.comparison import measured_verdict, verdict_of
    from fsdp_migrate.verify.recording.read import read
    from fsdp_migrate.verify.recording.recording import BadRecording
    from fsdp_migrate.verify.runs.launch import CannotRun

    files = [report_file(name) for name in report]
    try:
        first, second, repeated = read(before), read(after), read(again) if again is not None else None
        verdict = verdict_of(first, second, repeated, tolerance)
        if rounded is not None:
            verdict = measured_verdict(verdict, first, second, repeated, read(rounded))
    except (BadRecording, CannotRun) as error:
        raise click.ClickException(str(error)) from error
    show(verdict, files, form)
    return verdict.exit_code
