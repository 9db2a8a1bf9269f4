"""The command ``check``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdp_migrate.commands.options import (
    JOBS,
    QUIET,
    STATS,
    STDIN_FILENAME,
    TRACE,
    VERBOSE,
    Named,
    complete_files,
    rule_options,
    rule_settings,
    say_settings,
    standard_input,
    writable,
)
from fsdp_migrate.tree.settings import LEVELS

if TYPE_CHECKING:
    from fsdp_migrate.check.checked import CheckResult
    from fsdp_migrate.trace.evidence import Evidence
    from fsdp_migrate.tree.torch_release import TorchRelease
    from fsdp_rules.verdict.finding import Finding

_HELP = """Fail if PATH... still has FSDP1 code, or checkpoints that FSDP2 cannot load. Nothing is written or loaded.

PATH is a Python file, a Jupyter notebook, a checkpoint or one of its files, or a directory with any of these. The
content of a file decides, not its name. Name every directory of a project in one call: a wrapped model is followed from
file to file. Under a directory, files that git ignores are skipped. torch need not be installed. Only the metadata of a
checkpoint is read, however large it is: no tensor is read, and no pickle is executed.

\b
  fsdp-migrate check                                fails while FSDP1 remains
  fsdp-migrate check --min-level manual src/        fail only on manual places
  fsdp-migrate check --write-baseline known.json .  record current findings,
  fsdp-migrate check --baseline known.json .        and fail only on new ones
  fsdp-migrate check --ignore FSDP2,FSDP404 .       leave some rules out
  fsdp-migrate check --since main                   also report cheating edits
  fsdp-migrate check --stdin-filename a.py - < a.py a text, for editors
  fsdp-migrate check --format sarif --output out.sarif src/ out/step_1000

\b
Levels, each of which includes the ones below it:
  info    nothing to do; fails only with --min-level info
  safe    FSDP1 code that rewrite moves with the same numbers (the default)
  review  FSDP1 code that rewrite moves on an assumption
  manual to be done by hand, and checkpoints that must be converted

\b
Formats:
  text    for people and logs
  json    for programs
  sarif   SARIF 2.1.0, for code scanning; with the help of each rule
  github  annotations of GitHub Actions; in a step its summary and outputs
  gitlab  GitLab's code quality report
  junit   JUnit's XML, for the test pages of CI servers

\b
Exit code:
  0  nothing at or above the level
  1  findings
  2  it could not run, or a path could not be checked

The results for the sources are kept in your cache folder and reused while no source and no option has changed;
--no-cache computes them again.
Without PATH, the current directory is checked. Defaults for --select, --ignore, --to, --helpers, --torch, --jobs,
--min-level and --baseline can be set in pyproject.toml under [tool.fsdp-migrate], where you can also set exclude,
extend-exclude, include and per-file-ignores.
A comment "# fsdp-migrate: ignore[FSDP203]" on a line silences a rule there.
`fsdp-migrate rules FSDP203` explains one.
"""


@click.command(help=_HELP, short_help="Fail if FSDP1 code remains, in sources or checkpoints.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, shell_complete=complete_files)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github", "gitlab", "junit"]),
    default="text",
    show_default=True,
    help="The output format.",
)
@click.option(
    "--output",
    metavar="FILE",
    type=Named(),
    shell_complete=complete_files,
    help="Write the output to this file, and text to standard output.",
)
@click.option("--min-level", type=click.Choice(LEVELS), help="Lowest level that fails (default: safe).")
@rule_options
@click.option(
    "--baseline",
    metavar="FILE",
    type=Named(),
    shell_complete=complete_files,
    help="Ignore the findings listed in FILE.",
)
@click.option(
    "--write-baseline",
    metavar="FILE",
    type=Named(),
    shell_complete=complete_files,
    help="Write all findings to FILE, and exit 0.",
)
@click.option(
    "--since",
    metavar="REV",
    help="Also report edits since this commit, anywhere in the repository, that weaken the proof of the migration: "
    "deleted asserts, skipped tests, fewer steps, other seeds, silenced findings.",
)
@click.option("--digests", is_flag=True, help="Read the tensors of checkpoints too, and compare their CRC-32.")
@click.option("--exit-zero", is_flag=True, help="Exit 0 even with findings, but still 2 if it could not run.")
@click.option("--to", type=click.Choice(["native", "shim"]), help="The target of rewrite (default: native).")
@TRACE
@click.option("--no-cache", is_flag=True, help="Compute everything again, and store nothing for the next run.")
@STDIN_FILENAME
@JOBS
@QUIET
@VERBOSE
@STATS
def check(
    paths: tuple[str, ...],
    form: str,
    output: str | None,
    min_level: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    baseline: str | None,
    write_baseline: str | None,
    since: str | None,
    digests: bool,
    exit_zero: bool,
    to: str | None,
    helpers: str | None,
    torch: TorchRelease | None,
    both: str | None,
    trace: Evidence | None,
    no_cache: bool,
    stdin_filename: str | None,
    jobs: int | None,
    verbosity: str | None,
) -> int:
    from fsdp_migrate.check import gate as run
    from fsdp_migrate.check.baseline import BaselineError
    from fsdp_migrate.check.checked import exit_code
    from fsdp_migrate.pipeline.engine import RulesEngine
    from fsdp_migrate.report.progress import shown
    from fsdp_migrate.report.rulebook import UnknownRule, pages
    from fsdp_migrate.tree import settings
    from fsdp_migrate.tree.cache import user_cache
    from fsdp_migrate.tree.files import NoSuchPath
    from fsdp_rules.verdict.finding import Level

    if baseline and write_baseline:
        raise click.UsageError("--baseline and --write-baseline exclude each other: choose one")
    target = writable(output, "--output") if output else None
    kept = writable(write_baseline, "--write-baseline") if write_baseline else None
    paths, stdin = standard_input(paths, stdin_filename)
    try:
        defaults = settings.load_first(map(Path, paths))
        known = Path(baseline) if baseline else defaults.baseline
        wanted, release = rule_settings(select, ignore, to, helpers, torch, Path(paths[0]), defaults, both)
        if verbosity == "verbose":
            say_settings(wanted, release, defaults)
        request = run.CheckRequest(
            paths,
            wanted,
            Level(min_level or defaults.min_level or "safe"),
            None if write_baseline else known,
            jobs or defaults.jobs,
            defaults.files,
            stdin,
            digests,
            trace,
            None if no_cache else user_cache(),
            _edits(since, Path(paths[0])) if since else (),
        )
        with shown() as progress:
            result = run.check(request, RulesEngine(), lambda: {page.id: page.name for page in pages()}, progress)
        if kept and not result.errors:
            given = {"--select": ",".join(select), "--ignore": ",".join(ignore), "--to": to, "--min-level": min_level}
            asked = [part for name, value in given.items() if value for part in (name, value)]
            return _keep(kept, result, [*asked, *paths])
    except (NoSuchPath, UnknownRule, settings.SettingsError, BaselineError) as error:
        raise click.ClickException(str(error)) from error
    _show(result, form, target, verbosity or "")
    if form == "github":
        _say_to_github(result)
    code = exit_code(result)
    return 0 if exit_zero and code == 1 else code


def _edits(rev: str, path: Path) -> tuple[Finding, ...]:
    from fsdp_migrate.check.weakening.since import edits_since
    from fsdp_migrate.tree import git

    there = path.resolve()
    root = git.repository(there if there.is_dir() else there.parent)
    if root is None:
        raise click.UsageError("--since needs a commit to compare with, and this is not a git repository")
    try:
        return tuple(edits_since(root, rev))
    except git.GitError as error:
        raise click.ClickException(f"--since {rev}: {error}") from error


def _say_to_github(result: CheckResult) -> None:
    """Add to the files that GitHub names to a step; each step has its own."""
    from fsdp_migrate.report.check import step_summary

    for name, text in (("GITHUB_STEP_SUMMARY", step_summary.render), ("GITHUB_OUTPUT", step_summary.outputs)):
        if file := os.environ.get(name):
            try:
                with Path(file).open("a", encoding="utf-8", errors="backslashreplace") as stream:
                    stream.write(text(result))
            except OSError as error:
                raise click.ClickException(f"could not write {file}: {error.strerror or error}") from error


def _keep(file: Path, result: CheckResult, asked: list[str]) -> int:
    from fsdp_migrate.check import baseline
    from fsdp_migrate.report.summary import count, printable

    number = baseline.write(file, result.failing)
    following = shlex.join(["fsdp-migrate", "check", "--baseline", str(file), *asked])
    click.echo(printable(f"{count(number, 'finding')} written to {file}. Next: {following}"))
    return 0


def _show(result: CheckResult, form: str, target: Path | None, verbosity: str) -> None:
    from fsdp_migrate.report.check import render
    from fsdp_migrate.report.check import text as plain
    from fsdp_migrate.tree import writing

    text = plain.render(result, verbosity) if form == "text" else render(form, result)
    if target is not None:
        try:
            writing.answer(target, text.encode("utf-8", errors="backslashreplace"))
        except OSError as error:
            raise click.ClickException(f"could not write {target}: {error.strerror or error}") from error
        form, text = "text", plain.render(result, verbosity)
    if form == "text" and sys.stdout.isatty():
        from rich.console import Console

        from fsdp_migrate.report.check import terminal

        terminal.show(result, Console(), verbosity)
        return
    click.echo(text, nl=False)
