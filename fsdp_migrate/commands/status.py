"""The command ``status``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from fsdp_migrate.commands.checked_tree import base_of, checked, under
from fsdp_migrate.commands.options import JOBS, TRACE, Named, complete_files, writable

if TYPE_CHECKING:
    from fsdp_migrate.check.ledger import FileState
    from fsdp_migrate.trace.evidence import Evidence

_HELP = """Show how much of PATH... is migrated, by folder or by owner.

A file is manual (something is left to do by hand), fsdp1 (a rewrite would move it), shim (it imports fsdp_compat) or
native. Files that do not use FSDP are not counted. Nothing is written or changed.

\b
  fsdp-migrate status                        by the first folder under PATH
  fsdp-migrate status --by owner             by the owners in CODEOWNERS
  fsdp-migrate status --since v1.2           and what has changed since then
  fsdp-migrate status --format json          for a dashboard over time

\b
Exit code:
  0  the command ran
  2  it could not run, or a path could not be checked
"""


@click.command(help=_HELP, short_help="Show how much of a project is migrated, by folder or owner.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, shell_complete=complete_files)
@click.option(
    "--by", type=click.Choice(["folder", "owner"]), default="folder", show_default=True, help="Group by this."
)
@click.option("--since", metavar="REF", help="Compare with this commit.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "md", "html"]),
    default="text",
    show_default=True,
    help="The output format.",
)
@click.option(
    "--output",
    metavar="FILE",
    type=Named(),
    shell_complete=complete_files,
    help="Write to this file instead of standard output.",
)
@TRACE
@JOBS
def status(
    paths: tuple[str, ...],
    by: str,
    since: str | None,
    form: str,
    output: str | None,
    trace: Evidence | None,
    jobs: int | None,
) -> int:
    from fsdp_migrate.check.ledger import row, rows
    from fsdp_migrate.report.ledger_table import Ledger, render
    from fsdp_migrate.report.summary import printable
    from fsdp_migrate.tree import git, writing
    from fsdp_migrate.tree.owners import code_owners

    paths = paths or (".",)
    target = writable(output, "--output") if output else None
    first = Path(paths[0]).resolve()
    folder = first if first.is_dir() else first.parent
    root = git.repository(folder)
    base = base_of(first)
    owners = code_owners(base) if by == "owner" else None
    if by == "owner" and owners is None:
        raise click.UsageError(f"--by owner needs a CODEOWNERS file in {base}, in its .github or in its docs")

    def group(path: str) -> str:
        return owners(path) if owners is not None else _folder(path, [under(base, Path(name)) for name in paths])

    now, errors = _states(paths, base, jobs, trace)
    before: list[FileState] = []
    if since is not None:
        if root is None:
            raise click.UsageError("--since compares commits, and this is not a git repository")
        try:
            with tempfile.TemporaryDirectory() as name:
                git.export(root, since, Path(name))
                then = [Path(name) / under(root, Path(path)) for path in paths]
                before, _ = _states([str(path) for path in then if path.exists()], Path(name), jobs)
        except git.GitError as error:
            raise click.ClickException(f"--since {since}: {error}") from error
    ledger = Ledger(
        by, *(git.head(root) if root else ("", "")), rows(now, group), row("total", now), since or "",
        rows(before, group), row("total", before) if since is not None else None,
    )  # fmt: skip
    text = render(form, ledger)
    if target is None:
        click.echo(text, nl=False)
    else:
        try:
            writing.answer(target, text.encode("utf-8", errors="backslashreplace"))
        except OSError as error:
            raise click.ClickException(f"could not write {target}: {error.strerror or error}") from error
    for path, reason in errors:
        click.echo(printable(f"{path}: error: {reason}"), err=True)
    return 2 if errors else 0


def _states(
    paths: list[str] | tuple[str, ...], base: Path, jobs: int | None, trace: Evidence | None = None
) -> tuple[list[FileState], list[tuple[str, str]]]:
    """The state of every file under ``paths``, by its path from ``base``, and what could not be read."""
    from dataclasses import replace

    from fsdp_migrate.check.ledger import states

    if not paths:
        return [], []
    result, selection = checked(paths, jobs, trace)
    found = [replace(file, path=under(base, Path(file.path)).as_posix()) for file in states(result, selection)]
    return found, list(result.errors)


def _folder(path: str, roots: list[PurePosixPath]) -> str:
    """The first folder of ``path`` below the one of ``roots`` that it is under, with that root."""
    file = PurePosixPath(path)
    for root in roots:
        if file.is_relative_to(root):
            inner = file.relative_to(root).parts
            return (root / inner[0]).as_posix() if len(inner) > 1 else root.as_posix()
    return file.parent.as_posix()
