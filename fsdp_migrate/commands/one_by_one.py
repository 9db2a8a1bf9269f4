"""The commands ``next`` and ``done``; as in :mod:`fsdp_migrate.cli`, what they need is imported when they run."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdp_migrate.commands.checked_tree import base_of, checked
from fsdp_migrate.commands.options import FORMAT, JOBS, TRACE, Named, complete_files

if TYPE_CHECKING:
    from fsdp_migrate.check.checked import CheckResult
    from fsdp_migrate.check.items import Item
    from fsdp_migrate.report.item_page import Left
    from fsdp_migrate.trace.evidence import Evidence
    from fsdp_migrate.tree.handed_out import Record

_NEXT_HELP = """Show the most important place under PATH... that you must change by hand, and all that you need for it.

The output has its id, the source around it, where the model is wrapped, what the rule says about FSDP1 and FSDP2, and
the command that checks your change. It is at most 6,000 bytes, about 2,000 tokens. The id does not change while code
around it moves.

\b
  fsdp-migrate next                 one place, the most important first
  fsdp-migrate next --format json   the same for programs
  fsdp-migrate done ID              check it and show what remains

\b
Exit code:
  0  nothing is left
  1  something is left, by hand or for a rewrite
  2  it could not run, or a path could not be checked
"""

_DONE_HELP = """Check one place that fsdp-migrate next has shown, by its ID, and show what remains.

The place is done if its finding is gone, the file has no new finding of the same rule, and no edit of the file hides
the finding or weakens the proof of the migration (see check --since).

\b
Exit code:
  0  it is done, whatever remains elsewhere
  1  it is not done
  2  it could not run, or no place has this ID
"""

_JSON = click.option("--json", "form", flag_value="json", hidden=True)
_PATHS = click.argument("paths", metavar="[PATH]...", nargs=-1, type=Named(), shell_complete=complete_files)


@click.command("next", help=_NEXT_HELP, short_help="Show the next place to change by hand.")
@_PATHS
@FORMAT
@_JSON
@TRACE
@JOBS
def next_item(paths: tuple[str, ...], form: str, trace: Evidence | None, jobs: int | None) -> int:
    from fsdp_migrate.check.items import open_items
    from fsdp_migrate.check.remembered import recalled
    from fsdp_migrate.report import item_page as report
    from fsdp_migrate.report.rulebook import pages
    from fsdp_migrate.tree.own_folder import project_root

    paths = paths or (".",)
    base = base_of(Path(paths[0]))
    result = _checked(paths, jobs, trace)
    items = open_items(result, base)
    item = recalled(items[0], project_root(base)) if items else None
    left = _left(result, items, paths)
    page = next((page for page in pages() if item and page.id == item.told.finding.rule), None)
    if item is not None:
        _keep(base, item, items, paths)
    sources = _sources(item)
    if form == "json":
        click.echo(report.as_json(item, left, page, sources), nl=False)
    else:
        for line in report.lines(item, left, page, sources):
            click.echo(line)
    return _code(result, bool(item or left.findings))


@click.command("done", help=_DONE_HELP, short_help="Check one place that next has shown.")
@click.argument("item", metavar="ID")
@_PATHS
@FORMAT
@_JSON
@JOBS
def done(item: str, paths: tuple[str, ...], form: str, jobs: int | None) -> int:
    from fsdp_migrate.check.items import open_items
    from fsdp_migrate.report.document import document
    from fsdp_migrate.report.summary import count, printable
    from fsdp_migrate.tree.handed_out import Damaged, HandedOut
    from fsdp_migrate.tree.own_folder import project_root

    base = base_of(Path(paths[0] if paths else "."))
    kept = HandedOut(project_root(base))
    try:
        record = kept.get(item)
    except Damaged as error:
        raise click.ClickException(str(error)) from error
    if record is None:
        raise click.UsageError(f"fsdp-migrate next has not shown a place with the id {item} here")
    paths = paths or record.paths
    result = _checked(paths, jobs, None)
    items = open_items(result, base)
    reasons = [*_reasons(item, record, items, base)]
    if not reasons:
        kept.keep(item, replace(record, is_done=True))
    left = _left(result, items, paths)
    if form == "json":
        remains = {"open": left.number, "to_rewrite": left.findings, "ids": [one.id for one in items][:20]}
        click.echo(document("done", {"id": item, "done": not reasons, "reasons": reasons, **remains}), nl=False)
    else:
        click.echo(f"{item} is {'not done:' if reasons else 'done.'}")
        for reason in reasons:
            click.echo(f"  {printable(reason)}")
        following = (
            "fsdp-migrate next" if items else left.rewrite if left.findings else "fsdp-migrate verify -- COMMAND"
        )
        click.echo(printable(f"{count(left.number, 'place')} left to do by hand. Next: {following}"))
    return _code(result, bool(reasons))


def _checked(paths: tuple[str, ...], jobs: int | None, trace: Evidence | None) -> CheckResult:
    from fsdp_migrate.report.summary import printable

    result, _ = checked(paths, jobs, trace, cached=True)
    for path, reason in result.errors:
        click.echo(printable(f"{path}: error: {reason}"), err=True)
    return result


def _code(result: CheckResult, is_left: bool) -> int:
    return 2 if result.errors else int(is_left)


def _left(result: CheckResult, items: list[Item], paths: tuple[str, ...]) -> Left:
    from fsdp_migrate.check.items import to_rewrite
    from fsdp_migrate.report.item_page import Left

    moved = to_rewrite(result)
    files = {told.finding.path for told in moved}
    return Left(len(items), len(moved), len(files), shlex.join(["fsdp-migrate", "rewrite", *paths]))


def _keep(base: Path, item: Item, items: list[Item], paths: tuple[str, ...]) -> None:
    from fsdp_migrate.check.items import count_alike
    from fsdp_migrate.tree.handed_out import Damaged, HandedOut, Record
    from fsdp_migrate.tree.own_folder import project_root

    known = tuple(one.id for one in items)
    absolute = tuple(str(Path(path).absolute()) for path in paths)
    record = Record(absolute, item.path, _read(base / item.path), known, count_alike(items, item))
    try:
        HandedOut(project_root(base)).keep(item.id, record)
    except (Damaged, OSError) as error:
        raise click.ClickException(f"could not store the data that done needs: {error}") from error


def _sources(item: Item | None) -> dict[str, bytes]:
    """The files that an item is about, by the paths of its finding."""
    if item is None:
        return {}
    finding = item.told.finding
    paths = {finding.path, *(finding.wrap or ())[:1]}
    return {path: _read(Path(path)) for path in paths}


def _read(path: Path) -> bytes:
    from fsdp_migrate.tree.regular import read_regular

    try:
        return read_regular(path)
    except OSError:
        # A checkpoint is a folder; an item of it has no source to show.
        return b""


def _reasons(wanted: str, record: Record, items: list[Item], base: Path) -> list[str]:
    """Why an item is not done; [] where it is."""
    from fsdp_migrate.check.items import count_alike
    from fsdp_migrate.check.weakening.since import weakened_between

    reasons = []
    rule = wanted.partition("-")[0]
    for item in items:
        finding = item.told.finding
        where = f"{item.path}:{finding.line}"
        if item.id == wanted and count_alike(items, item) >= record.alike:
            reasons.append(f"{where} {rule} {finding.text}")
        elif item.id not in record.open and item.path == record.path and finding.rule == rule:
            reasons.append(f"{where} {rule} {finding.text} (its line has changed: {item.id})")
    file = base / record.path
    if not file.exists():
        return [*reasons, f"{record.path} no longer exists: if it moved, run fsdp-migrate next again"]
    for edit in weakened_between(record.path, record.source, _read(file)):
        reasons.append(f"{record.path}:{edit.line} {edit.rule} {edit.message}")
    return reasons
