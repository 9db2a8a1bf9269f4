"""The command ``undo``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fsdp_migrate.commands.options import FORMAT, Named, complete_files

if TYPE_CHECKING:
    from fsdp_migrate.tree.undoing import PutBack, Run, Runs

_HELP = """Restore the files that the last rewrite of PATH... replaced, byte for byte. Git is not needed.

Every run that rewrites files keeps the old content in .fsdp-migrate in the root of the repository (without one, in
the directory that was rewritten), or in your state folder if the tree is read-only. The last 20 runs are kept.
Files that you have edited, moved or deleted since then are listed and not changed.

\b
  fsdp-migrate undo              undo the last run
  fsdp-migrate undo --list       show the runs that can be undone
  fsdp-migrate undo --run 3      undo one of them

\b
Exit code:
  0  every file of the run has its old content again
  1  some files were edited since, and are not changed
  2  it could not run, or there is nothing to undo
"""


@click.command(help=_HELP, short_help="Restore the files that the last rewrite replaced.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=Named(), shell_complete=complete_files)
@click.option("--list", "lists", is_flag=True, help="Show the runs that can be undone, newest first.")
@click.option("--run", "number", type=click.IntRange(min=1), metavar="N", help="Undo this run.")
@FORMAT
def undo(paths: tuple[str, ...], lists: bool, number: int | None, form: str) -> int:
    from fsdp_migrate.report.document import document
    from fsdp_migrate.report.summary import printable
    from fsdp_migrate.tree.files import NoSuchPath, refuse_missing
    from fsdp_migrate.tree.own_folder import roots
    from fsdp_migrate.tree.undoing import NoRun, Runs

    told: list[dict[str, object]] = []
    left = 0
    try:
        for path in paths:
            refuse_missing(path)
        known = [Runs(root) for root in roots(paths or (".",))]
        wanted = [(runs, run) for runs in known for run in (runs.all() if lists else [runs.get(number)])]
        for runs, run in wanted:
            result = None if lists else runs.put_back(run)
            left += len(result.left) if result else 0
            told.append(_as_data(runs, run, result))
            if form == "text":
                for line in _lines(run, result):
                    click.echo(printable(line))
    except NoSuchPath as error:
        raise click.ClickException(str(error)) from error
    except NoRun as error:
        where = ", ".join(str(runs.root) for runs in known)
        raise click.ClickException(
            f"{error}: in {where}; for another directory, name it: fsdp-migrate undo DIR"
        ) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'a file'}: {error.strerror or error}") from error
    if form == "json":
        click.echo(document("undo", {"runs": told}), nl=False)
    return 1 if left else 0


def _lines(run: Run, result: PutBack | None) -> Iterator[str]:
    """About one run: what was put back, or without a result that it can be."""
    from fsdp_migrate.report.summary import count

    if result is None:
        yield f"{run.number:>3}  {run.time}  {count(len(run.files), 'file')}  {run.command}"
        return
    yield from (f"{file}: restored" for file in result.done)
    for kept in result.left:
        yield f"{kept.path}: edited since, not changed; to see its old content: gzip -dc {kept.copy}"
    yield f"{count(len(result.done), 'file')} restored, {len(result.left)} not restored (run {run.number})"


def _as_data(runs: Runs, run: Run, result: PutBack | None) -> dict[str, object]:
    return {
        "root": str(runs.root),
        "run": run.number,
        "time": run.time,
        "command": run.command,
        "files": [kept.path for kept in run.files],
        "put_back": list(result.done) if result else [],
        "left": [{"path": kept.path, "copy": str(kept.copy)} for kept in result.left] if result else [],
    }
