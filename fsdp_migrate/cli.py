"""The command line: options in, exit code out. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdp_migrate.commands.check import check
from fsdp_migrate.commands.checkpoint import checkpoint

if TYPE_CHECKING:
    from fsdp_migrate.pipeline.outcome import RunResult

OK, FINDINGS, FAILURE, INTERRUPTED = 0, 1, 2, 130

_REPORTS = (".html", ".json", ".md")

_HELP = """Move a PyTorch FSDP1 training codebase to FSDP2 with the same loss curve.

\b
  fsdp-migrate rewrite --diff src/     see what would change
  fsdp-migrate rewrite src/            change it
  fsdp-migrate check src/ checkpoints/ fail where FSDP1 is left, for CI
  fsdp-migrate rules                   list what is known about FSDP1
  fsdp-migrate rules FSDP102           explain one rule, with an example
  fsdp-migrate checkpoint inspect DIR  say what a checkpoint holds and how it loads
"""

_REWRITE_HELP = """Rewrite the FSDP1 code under PATH... to FSDP2, in place.

PATH is a Python file, a Jupyter notebook or a directory. In a git repository the files that git knows or does not
ignore are taken, elsewhere all that no .gitignore excludes. Name every directory of a project in one call: a wrapped
model is followed from file to file.

What cannot be carried over is never dropped: it stays as it is, with a TODO above it, and is listed.

\b
  fsdp-migrate rewrite --diff . | git apply     review, then apply as a patch
  fsdp-migrate rewrite --to shim train.py       keep FSDP1 code, run it on FSDP2 through fsdp_compat
  fsdp-migrate rewrite --ignore FSDP3,FSDP203 . leave some rules out
  fsdp-migrate rewrite --report left.html src/  write what changed, and why, as a page

\b
Exit code:
  0  nothing is left to do by hand
  1  something is left to do by hand
  2  it could not run, or a file could not be done

Defaults for --select, --ignore, --to, --helpers and --jobs can stand in pyproject.toml under [tool.fsdp-migrate].
A comment "# fsdp-migrate: ignore[FSDP203]" on a line silences a rule there.
"""


@click.group(help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fsdp-migrate", message="%(prog)s %(version)s")
def cli() -> None:
    return


cli.add_command(check)
cli.add_command(checkpoint)


@cli.command(help=_REWRITE_HELP, short_help="Rewrite FSDP1 code to FSDP2.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--diff", is_flag=True, help="Print a patch and write nothing; the report goes to standard error.")
@click.option("--to", type=click.Choice(["native", "shim"]), help="FSDP2 itself (default), or imports of fsdp_compat.")
@click.option("--select", metavar="RULES", multiple=True, help="Only these rules: ids or prefixes, comma separated.")
@click.option("--ignore", metavar="RULES", multiple=True, help="All but these rules.")
@click.option("--helpers/--no-helpers", default=None, help="Whether FSDP2 code may call fsdp_compat (default: yes).")
@click.option("--report", metavar="FILE", multiple=True, help="Write a report, .html, .json or .md; may be repeated.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes at most (default: one a processor).")
@click.option("--allow-dirty", is_flag=True, help="Also rewrite files with uncommitted work.")
def rewrite(
    paths: tuple[str, ...],
    diff: bool,
    to: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    helpers: bool | None,
    report: tuple[str, ...],
    jobs: int | None,
    allow_dirty: bool,
) -> int:
    from fsdp_migrate.pipeline import outcome, run
    from fsdp_migrate.pipeline.engine import RulesEngine
    from fsdp_migrate.report.progress import shown
    from fsdp_migrate.report.rulebook import UnknownRule, check_names, pages
    from fsdp_migrate.tree import settings
    from fsdp_migrate.tree.files import NoSuchPath
    from fsdp_migrate.tree.git import GitError
    from fsdp_rules.verdict.finding import Settings

    reports = [_report_file(name) for name in report]
    try:
        defaults = settings.load(Path(paths[0]))
        selected = settings.split_names(select or defaults.select or ())
        ignored = settings.split_names(ignore or defaults.ignore or ())
        if selected or ignored:
            check_names((*selected, *ignored), pages())
        wanted = Settings(
            to=to or defaults.to or "native",
            helpers=next(value for value in (helpers, defaults.helpers, True) if value is not None),
            select=selected,
            ignore=ignored,
        )
        request = run.Request(paths, wanted, diff, jobs or defaults.jobs, allow_dirty)
        with shown() as progress:
            result = run.rewrite(request, RulesEngine(), progress)
    except (NoSuchPath, UnknownRule, settings.SettingsError) as error:
        raise click.ClickException(str(error)) from error
    except GitError as error:
        raise click.ClickException(f"{error}; pass --allow-dirty to write without asking git") from error
    except run.Interrupted as interrupt:
        click.echo(f"interrupted: {interrupt.written} of {interrupt.total} files were rewritten, each whole", err=True)
        return INTERRUPTED
    _show(result)
    _write_reports(result, reports)
    return outcome.exit_code(result)


@cli.command(name="rules", short_help="List the rules, or explain one.")
@click.argument("rule", required=False)
def rules(rule: str | None) -> int:
    """List the rules, or explain the RULE with this id or name."""
    from fsdp_migrate.report.rulebook import UnknownRule, explanation, find, listing, pages

    known = pages()
    try:
        lines = explanation(find(rule, known)) if rule else listing(known)
    except UnknownRule as error:
        raise click.ClickException(str(error)) from error
    if rule and sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown("\n".join(lines)))
        return OK
    for line in lines:
        click.echo(line)
    return OK


def _report_file(name: str) -> Path:
    file = Path(name)
    if file.suffix not in _REPORTS:
        raise click.UsageError(f"--report {name}: the name must end in {', '.join(_REPORTS[:-1])} or {_REPORTS[-1]}")
    if not file.absolute().parent.is_dir() or file.is_dir():
        raise click.UsageError(f"--report {name}: there is no directory {file.parent} to write it to")
    return file


def _show(result: RunResult) -> None:
    """Print the result; with --diff the patch alone goes to standard output, so that it can be piped.

    A refusal is raised, not shown: then there is no report either.
    """
    from fsdp_migrate.report import summary
    from fsdp_migrate.report.rewrite import text_report as text

    if result.refused:
        raise click.ClickException(summary.refusal(result))
    if result.diff:
        _show_diff(result)
    stream = sys.stderr if result.diff else sys.stdout
    if stream.isatty():
        from rich.console import Console

        from fsdp_migrate.report.rewrite import terminal_report as terminal

        terminal.show(result, Console(file=stream))
        return
    for line in text.error_lines(result):
        click.echo(line, err=True)
    for line in text.lines(result):
        click.echo(line, file=stream)


def _show_diff(result: RunResult) -> None:
    from fsdp_migrate.report.diff import patch_path, unified
    from fsdp_rules.verdict.finding import Changed

    here = Path.cwd()
    lines = (
        line
        for file in result.changed
        if isinstance(file.result, Changed)
        for line in unified(patch_path(file.real, here), file.before, file.result.source)
    )
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
            writing.replace(file.resolve(), text.encode("utf-8", errors="backslashreplace"))
        except OSError as error:
            raise click.ClickException(f"could not write {file}: {error.strerror}") from error


def _render(suffix: str, result: RunResult) -> str:
    """The report of the kind that a suffix in ``_REPORTS`` stands for."""
    match suffix:
        case ".html":
            from fsdp_migrate.report.rewrite import html_report as html

            return html.render(result)
        case ".json":
            from fsdp_migrate.report.rewrite import json_report as json

            return json.render(result)
        case _:
            from fsdp_migrate.report.rewrite import markdown_report as markdown

            return markdown.render(result)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (None: those of the process); the exit code."""
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="fsdp-migrate", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return FAILURE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted: nothing was written", err=True)
        return INTERRUPTED
    return int(code or OK)


def entry_point() -> None:
    """What the installed command runs."""
    for stream in (sys.stdout, sys.stderr):
        # A message may hold characters of the user's source that this terminal cannot show.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main()
        sys.stdout.flush()
    except OSError as error:
        code = _unsaid(error)
    sys.exit(code)


def _unsaid(error: OSError) -> int:
    """Standard output is full, for example: an answer that nobody got must not pass for one."""
    click.echo(f"Error: could not write the answer: {error.strerror or error}", err=True)
    # Python writes what is left when it ends, and would fail once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILURE
