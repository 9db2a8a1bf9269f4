"""The command ``undo``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

import click

from fsdp_migrate.commands.options import Named, complete_files

_HELP = """Put back what the last rewrite of PATH... replaced, byte for byte; git is not needed.

Every run that rewrites files keeps what they held, in .fsdp-migrate in the root of the repository (without one, in the
directory that was rewritten), or in your state folder where the tree is read-only; the last 20 runs are kept.
Files that you have edited, moved or deleted since are left as they are, and listed.

\b
  fsdp-migrate undo              take back the last run
  fsdp-migrate undo --list       show the runs that can be taken back
  fsdp-migrate undo --run 3      take back one of them

\b
Exit code:
  0  every file of the run holds again what it held before
  1  some files were edited since, and are left as they are
  2  it could not run, or there is nothing to take back
"""


@click.command(help=_HELP, short_help="Put back what the last rewrite replaced.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=Named(), shell_complete=complete_files)
@click.option("--list", "lists", is_flag=True, help="Show the runs that can be taken back, the newest first.")
@click.option("--run", "number", type=click.IntRange(min=1), metavar="N", help="Take back this run.")
def undo(paths: tuple[str, ...], lists: bool, number: int | None) -> int:
    from fsdp_migrate.report.summary import count, printable
    from fsdp_migrate.tree.files import NoSuchPath, refuse_missing
    from fsdp_migrate.tree.own_folder import roots
    from fsdp_migrate.tree.undoing import NoRun, Runs

    try:
        for path in paths:
            refuse_missing(path)
        known = [Runs(root) for root in roots(paths or (".",))]
        if lists:
            for runs in known:
                for run in runs.all():
                    said = f"{run.number:>3}  {run.time}  {count(len(run.files), 'file')}  {run.command}"
                    click.echo(printable(said))
            return 0
        left = 0
        for runs in known:
            run = runs.get(number)
            result = runs.put_back(run)
            for file in result.done:
                click.echo(printable(f"{file}: put back"))
            for kept in result.left:
                left += 1
                where = f"gzip -dc {kept.copy}"
                click.echo(printable(f"{kept.path}: edited since, left as it is; what it held before: {where}"))
            click.echo(f"{count(len(result.done), 'file')} put back, {len(result.left)} left (run {run.number})")
    except NoSuchPath as error:
        raise click.ClickException(str(error)) from error
    except NoRun as error:
        where = ", ".join(str(runs.root) for runs in known)
        raise click.ClickException(
            f"{error}: in {where}; for another directory, name it: fsdp-migrate undo DIR"
        ) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'a file'}: {error.strerror or error}") from error
    return 1 if left else 0
