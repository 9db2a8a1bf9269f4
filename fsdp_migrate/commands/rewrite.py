"""The command ``rewrite``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from fsdp_migrate.commands.options import (
    FORMAT,
    JOBS,
    LAYOUT,
    QUIET,
    STATS,
    STDIN_FILENAME,
    TRACE,
    VERBOSE,
    WHY,
    complete_files,
    rule_options,
    rule_settings,
    say_settings,
    standard_input,
)
from fsdp_migrate.commands.verdicts import report_file

if TYPE_CHECKING:
    from fsdp_migrate.pipeline.outcome import RunResult
    from fsdp_migrate.trace.evidence import Evidence
    from fsdp_migrate.tree.torch_release import TorchRelease
    from fsdp_rules.settings import PlannedUnits

_INTERRUPTED = 130

_HELP = """Rewrite the FSDP1 code under PATH... to FSDP2, in place.

PATH is a Python file, a Jupyter notebook or a directory. In a git repository, it reads the files that git knows or
does not ignore; elsewhere, all files that no .gitignore excludes. Name every directory of a project in one call: a
wrapped model is followed from file to file.

Code that cannot be rewritten is never dropped: it is kept, with a TODO above it, and listed.

\b
  fsdp-migrate rewrite --diff . | git apply     apply as a patch
  fsdp-migrate rewrite --to shim train.py       run FSDP1 code on fsdp_compat
  fsdp-migrate rewrite --from shim .            move it from there to FSDP2
  fsdp-migrate rewrite --ignore FSDP3,FSDP203 . leave some rules out
  fsdp-migrate rewrite --retire .               drop FSDP1 branches
  fsdp-migrate rewrite --layout expert .        other units than FSDP1's
  fsdp-migrate rewrite --interactive src/       ask about each change
  fsdp-migrate rewrite --report left.html src/  what changed, as a page
  fsdp-migrate rewrite --stdin-filename a.py - < a.py   a text, for editors
  fsdp-migrate rewrite --why src/loop.py:42 .   possible values on line 42

\b
Exit code:
  0  nothing is left to do by hand
  1  something is left to do by hand
  2  it could not run, or a file could not be processed

Without PATH, the current directory is rewritten. Defaults for --select, --ignore, --to, --helpers, --torch and --jobs
can be set in pyproject.toml under [tool.fsdp-migrate], where you can also set exclude, extend-exclude, include and
per-file-ignores. A comment "# fsdp-migrate: ignore[FSDP203]" on a line silences a rule there.
"""


@click.command(help=_HELP, short_help="Rewrite FSDP1 code to FSDP2.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, shell_complete=complete_files)
@click.option(
    "--diff", is_flag=True, help="Print a patch to standard output and the report to standard error; write nothing."
)
@click.option("--to", type=click.Choice(["native", "shim"]), help="FSDP2 itself (default), or imports of fsdp_compat.")
@click.option(
    "--from",
    "of",
    type=click.Choice(["fsdp1", "shim"]),
    default="fsdp1",
    show_default=True,
    help="What the code uses now: FSDP1, or fsdp_compat.",
)
@rule_options
@LAYOUT
@FORMAT
@click.option(
    "--report",
    metavar="FILE",
    shell_complete=complete_files,
    multiple=True,
    help="Write a report, .html, .json or .md; may be repeated.",
)
@TRACE
@click.option("--specialize", is_flag=True, help="With --trace: replace settings in the code by the values of the run.")
@WHY
@STDIN_FILENAME
@JOBS
@click.option("-i", "--interactive", is_flag=True, help="Ask about every hunk. You can quit and continue later.")
@click.option("--allow-dirty", is_flag=True, help="Also rewrite files with uncommitted changes.")
@QUIET
@VERBOSE
@STATS
def rewrite(
    paths: tuple[str, ...],
    diff: bool,
    to: str | None,
    of: str,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    helpers: str | None,
    torch: TorchRelease | None,
    both: str | None,
    layout: str | PlannedUnits,
    form: str,
    report: tuple[str, ...],
    trace: Evidence | None,
    specialize: bool,
    why: tuple[str, int] | None,
    stdin_filename: str | None,
    jobs: int | None,
    interactive: bool,
    allow_dirty: bool,
    verbosity: str | None,
) -> int:
    from fsdp_migrate.pipeline import outcome, run
    from fsdp_migrate.pipeline.engine import RulesEngine
    from fsdp_migrate.pipeline.request import Request
    from fsdp_migrate.report.progress import shown
    from fsdp_migrate.report.rulebook import UnknownRule
    from fsdp_migrate.report.summary import refusal
    from fsdp_migrate.tree import settings
    from fsdp_migrate.tree.files import NoSuchPath
    from fsdp_migrate.tree.git import GitError
    from fsdp_migrate.tree.undoing import NotKept, keeper

    if of == to == "shim":
        raise click.UsageError("--from shim moves code on to FSDP2: leave out --to shim")
    if interactive and (diff or "-" in paths or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise click.UsageError("--interactive asks on a terminal, and writes files: leave out --diff and -")
    if form == "json" and (interactive or ("-" in paths and not diff)):
        raise click.UsageError("--format json must be the only output: with -, add --diff, and leave out --interactive")
    if specialize and (trace is None or of == "shim"):
        raise click.UsageError("--specialize writes what a run showed: give --trace FILE, and leave out --from shim")
    if why is not None and (diff or interactive or report or form == "json" or "-" in paths):
        raise click.UsageError("--why explains a line and writes nothing: combine it only with PATH")
    evidence = replace(trace, specializes=True) if trace is not None and specialize else trace
    paths, stdin = standard_input(paths, stdin_filename)
    reports = [report_file(name) for name in report]
    try:
        defaults = settings.load(Path(paths[0]))
        target = "native" if of == "shim" else to
        wanted, release = rule_settings(select, ignore, target, helpers, torch, Path(paths[0]), defaults, both, layout)
        if verbosity == "verbose":
            say_settings(wanted, release, defaults)
        request = Request(
            paths, wanted, diff, jobs or defaults.jobs, allow_dirty, release, of, defaults.files, stdin,
            observe=evidence, keep=keeper(paths, _command()), read_as=None if evidence is None else evidence.written,
        )  # fmt: skip
        if why is not None:
            from fsdp_migrate.commands.explaining import explain

            return explain(why, replace(request, diff=True))
        if interactive:
            from fsdp_migrate.commands.interactive import rewrite_asking

            asked = rewrite_asking(request, RulesEngine())
            if asked is None:
                return _INTERRUPTED
            result = asked
        else:
            with shown() as progress:
                result = run.rewrite(request, RulesEngine(), progress)
    except (NoSuchPath, UnknownRule, settings.SettingsError, NotKept) as error:
        raise click.ClickException(str(error)) from error
    except GitError as error:
        raise click.ClickException(f"{error}; pass --allow-dirty to write anyway") from error
    except run.Interrupted as interrupt:
        click.echo(
            f"interrupted: {interrupt.written} of {interrupt.total} files were rewritten, each completely", err=True
        )
        return _INTERRUPTED
    if stdin is None and not diff and not result.refused:
        from fsdp_migrate.check.remembered import remember

        remember(result)
    if stdin is not None and not diff:
        _print_source(result, stdin)
    if result.refused:
        raise click.ClickException(refusal(result))
    if form == "json":
        click.echo(_render(".json", result), nl=False)
    else:
        _show(result, verbosity or "", sys.stdout if stdin is None and not diff else sys.stderr)
    _write_reports(result, reports)
    return outcome.exit_code(result)


def _print_source(result: RunResult, stdin: bytes) -> None:
    """Print what became of standard input, as bytes in its own encoding; nothing where it could not be processed."""
    if not result.errors:
        from fsdp_rules.verdict.result import Changed

        sources = [file.result.source for file in result.changed if isinstance(file.result, Changed)]
        sys.stdout.flush()
        sys.stdout.buffer.write(sources[0] if sources else stdin)
        sys.stdout.buffer.flush()


def _show(result: RunResult, verbosity: str, stream: TextIO) -> None:
    """Print the result to ``stream``; with --diff the patch alone is printed to standard output, for a pipe."""
    from fsdp_migrate.report.rewrite import text_report as text

    if result.diff:
        _show_diff(result)
    if stream.isatty():
        from rich.console import Console

        if result.diff and result.changed and sys.stdout.isatty():
            click.echo(err=True)

        from fsdp_migrate.report.rewrite import terminal_report as terminal

        terminal.show(result, Console(file=stream), verbosity)
        return
    for line in text.error_lines(result):
        click.echo(line, err=True)
    for line in text.lines(result, verbosity):
        click.echo(line, file=stream)


def _show_diff(result: RunResult) -> None:
    from fsdp_migrate.report.diff import patch

    lines = patch(result, Path.cwd())
    if sys.stdout.isatty():
        from rich.console import Console

        from fsdp_migrate.report.rewrite import terminal_report as terminal

        terminal.show_diff(lines, Console())
        return
    # Bytes: a patch must hold what the file holds, whatever its encoding.
    sys.stdout.flush()
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()


def _write_reports(result: RunResult, files: Sequence[Path]) -> None:
    from fsdp_migrate.tree import writing

    for file in files:
        text = _render(file.suffix, result)
        try:
            writing.answer(file, text.encode("utf-8", errors="backslashreplace"))
        except OSError as error:
            raise click.ClickException(f"could not write {file}: {error.strerror or error}") from error


def _about(result: RunResult) -> list[tuple[str, str]]:
    """What a page says of the run it comes from."""
    from importlib.metadata import version

    from fsdp_migrate.tree import git

    first = Path(result.paths[0]).resolve()
    root = git.repository(first if first.is_dir() else first.parent)
    commit, day = git.head(root) if root is not None else ("", "")
    about = [
        ("Project", (root or (first if first.is_dir() else first.parent)).name),
        ("Commit", f"{commit} of {day}" if commit else ""),
        ("Report", f"{datetime.date.today():%Y-%m-%d}"),
        ("fsdp-migrate", version("fsdp-migrate")),
        ("Command", _command()),
    ]
    return [(name, value) for name, value in about if value]


def _command() -> str:
    return shlex.join(["fsdp-migrate", *(click.get_current_context().obj or [])])


def _render(suffix: str, result: RunResult) -> str:
    """The report of the kind that a suffix in ``_REPORTS`` stands for."""
    match suffix:
        case ".html":
            from fsdp_migrate.report.rewrite import html_report as html

            return html.render(result, _about(result))
        case ".json":
            from fsdp_migrate.report.rewrite import json_report as json

            return json.render(result)
        case _:
            from fsdp_migrate.report.rewrite import markdown_report as markdown

            return markdown.render(result)
