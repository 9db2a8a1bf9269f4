"""What several commands ask for in the same words: options, and what they come to beside pyproject.toml."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fsdp_migrate.tree.settings import HELPERS

if TYPE_CHECKING:
    from fsdp_migrate.trace.evidence import Evidence
    from fsdp_migrate.tree.settings import ProjectSettings
    from fsdp_migrate.tree.torch_release import TorchRelease
    from fsdp_migrate.verify.report.planned_costs import Rows
    from fsdp_rules.settings import PlannedUnits, Settings

Command = TypeVar("Command", bound=Callable[..., Any])


def complete_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell completes a path from: the files that are there."""
    return [CompletionItem(incomplete, type="file")]


class Named(click.Path):
    """A path that a user names: an empty one, as an unset variable of a shell gives it, is not the current folder."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """As :class:`click.Path` does it."""
        if value == "":
            self.fail("an empty name", parameter, context)
        return super().convert(value, parameter, context)


JOBS = click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Maximum number of processes (default: one per CPU)."
)

FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or JSON for programs, with the schemas in fsdp_migrate/schemas.",
)

CPU = click.option(
    "--cpu",
    is_flag=True,
    help="On a machine without a GPU: use the CPU for CUDA and gloo for NCCL (docs/cpu.md).",
)

QUIET = click.option("-q", "--quiet", "verbosity", flag_value="quiet", help="Print only the summary and errors.")
VERBOSE = click.option(
    "-v", "--verbose", "verbosity", flag_value="verbose", help="Print every finding separately, and the settings."
)


STATS = click.option("--stats", "verbosity", flag_value="stats", help="Print only the number of findings of each rule.")


def _evidence(context: click.Context, option: click.Parameter, value: str | None) -> Evidence | None:
    from fsdp_migrate.trace.evidence import Evidence
    from fsdp_migrate.trace.record import BadTrace, load

    try:
        return None if value is None else Evidence(load(Path(value)))
    except BadTrace as error:
        raise click.BadParameter(str(error)) from error


TRACE = click.option(
    "--trace",
    metavar="FILE",
    callback=_evidence,
    type=Named(),
    shell_complete=complete_files,
    help="A record of fsdp-migrate trace, used where the code alone does not say enough.",
)


def _place(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    name, _, line = value.rpartition(":")
    if not name or not line.isdecimal() or not int(line):
        raise click.BadParameter(f"{value}: give a file and a line, such as src/train.py:42")
    return name, int(line)


WHY = click.option(
    "--why",
    metavar="FILE:LINE",
    callback=_place,
    shell_complete=complete_files,
    help="Write nothing: print the possible values of the expressions on a line, and where they come from.",
)


BOTH = (
    click.option(
        "--keep-both",
        "both",
        flag_value="keep",
        help="Where code chooses between FSDP1 and FSDP2, keep both branches (default).",
    ),
    click.option("--retire", "both", flag_value="retire", help="Remove FSDP1's branches where FSDP2 has one."),
)


def _layout(context: click.Context, option: click.Parameter, value: str) -> str | PlannedUnits:
    from fsdp_migrate.tune.planned import BadPlan, load

    try:
        return value if value in ("keep", "expert") else load(Path(value))
    except BadPlan as error:
        raise click.BadParameter(str(error)) from error


LAYOUT = click.option(
    "--layout",
    default="keep",
    callback=_layout,
    metavar="keep|expert|FILE",
    help="The units of FSDP2: those of FSDP1 (default), those an expert would choose, or those of tune --format json.",
)


def _plan(context: click.Context, option: click.Parameter, value: str | None) -> Rows | None:
    from fsdp_migrate.verify.report.planned_costs import BadPlan, load

    try:
        return None if value is None else load(value)
    except BadPlan as error:
        raise click.BadParameter(str(error)) from error


PLAN = click.option(
    "--plan",
    callback=_plan,
    metavar="FILE[:LAYOUT]",
    shell_complete=complete_files,
    help="What tune --format json predicts, to show it beside what is counted.",
)


STDIN_FILENAME = click.option(
    "--stdin-filename",
    metavar="FILE",
    shell_complete=complete_files,
    help="With PATH -: the file name for standard input.",
)


def standard_input(paths: tuple[str, ...], name: str | None) -> tuple[tuple[str, ...], bytes | None]:
    """The paths to work on, the current directory if there are none, and standard input where the path is ``-``.

    Raises :class:`click.UsageError` where ``-`` is not the only path, or is missing beside ``--stdin-filename``.
    """
    if "-" not in paths:
        if name is not None:
            raise click.UsageError("--stdin-filename names standard input: give - as the only PATH")
        return paths or (".",), None
    if len(paths) > 1:
        raise click.UsageError("- is standard input: give it as the only PATH")
    content: bytes = sys.stdin.buffer.read()
    return (name or "-",), content


def _release(context: click.Context, option: click.Parameter, value: str | None) -> TorchRelease | None:
    from fsdp_migrate.tree.torch_release import TorchRelease, parse_release

    try:
        return None if value is None else TorchRelease(parse_release(value), "--torch")
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_RULES: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--select", metavar="RULES", multiple=True, help="Only these rules: ids or prefixes, separated by commas."
    ),
    click.option("--ignore", metavar="RULES", multiple=True, help="All rules except these."),
    click.option(
        "--helpers",
        type=click.Choice(HELPERS),
        help="When to call fsdp_compat (default: needed, that is, if FSDP2 has no short form).",
    ),
    click.option("--no-helpers", "helpers", flag_value="never", hidden=True),
    click.option(
        "--torch",
        metavar="RELEASE",
        callback=_release,
        help="The oldest torch that the code must run on, e.g. 2.13 (default: what the project requires).",
    ),
)


def rule_options(command: Command) -> Command:
    """Adds the options that :func:`rule_settings` takes."""
    for option in reversed((*_RULES, *BOTH)):
        command = option(command)
    return command


def rule_settings(
    select: Sequence[str],
    ignore: Sequence[str],
    to: str | None,
    helpers: str | None,
    torch: TorchRelease | None,
    target: Path,
    defaults: ProjectSettings,
    both: str | None = None,
    layout: str | PlannedUnits = "keep",
) -> tuple[Settings, TorchRelease]:
    """What the rules go by, and the torch that they write for.

    Each option where it was given, else what the project's pyproject.toml says; the release and the length of lines as
    the other files of the project around ``target`` have them.

    Raises :class:`fsdp_migrate.report.rulebook.UnknownRule` for a name that no rule has.
    """
    from fsdp_migrate.report.rulebook import check_names, check_selection, pages
    from fsdp_migrate.tree.line_length import line_length
    from fsdp_migrate.tree.settings import split_names
    from fsdp_migrate.tree.torch_release import least_torch, newest_releases
    from fsdp_rules.settings import Settings

    selected = split_names(select or defaults.select or ())
    ignored = split_names(ignore or defaults.ignore or ())
    in_files = [rule for _, rules in defaults.files.per_file_ignores for rule in rules]
    if selected or ignored or in_files:
        check_names((*selected, *ignored, *in_files), pages())
    release = torch or defaults.torch or least_torch(target)
    settings = Settings(
        to=to or defaults.to or "native",
        helpers=helpers or defaults.helpers or "needed",
        select=selected,
        ignore=ignored,
        torch=release.release,
        line_length=line_length(target),
        raises_torch=release.raises,
        both=both or "",
        layout=layout if isinstance(layout, str) else "keep",
        planned=None if isinstance(layout, str) else layout,
        **newest_releases(target),
    )
    if ignored:
        check_selection(settings, pages())
    return settings, release


def say_settings(settings: Settings, release: TorchRelease, defaults: ProjectSettings) -> None:
    """Print to standard error what a run goes by, for ``--verbose``."""
    from fsdp_migrate.report.summary import printable

    for said in (
        f"settings: {defaults.source or 'no pyproject.toml has [tool.fsdp-migrate]'}",
        f"torch: {release} ({release.source or 'the first with FSDP2'})",
        f"line length: {settings.line_length or 'not set by the project'}",
    ):
        click.echo(printable(said), err=True)


def writable(name: str, option: str) -> Path:
    """``name`` as a file that can be written.

    Raises :class:`click.UsageError` where its folder is missing, and where a source lies there.
    """
    from fsdp_migrate.tree.files import SHELL_SUFFIXES, SUFFIXES, real

    file = Path(name)
    # Path.is_dir raises for names that are too long.
    if not os.path.isdir(file.absolute().parent) or os.path.isdir(file):  # noqa: PTH112
        raise click.UsageError(f"{option} {name}: there is no directory {file.parent} to write it to")
    there = real(file)
    if there.suffix in (*SUFFIXES, *SHELL_SUFFIXES) and os.path.lexists(there):
        link = f", a link to {there}" if file.is_symlink() else ""
        raise click.UsageError(f"{option} {name}{link}: a source file, which would be overwritten: choose another name")
    return file


def show_error(error: click.ClickException) -> None:
    """Print ``error``, whose message may have a name that was given: no line of it is a command of a runner.

    A message may have several lines, of which a name can begin one.
    """
    from fsdp_migrate.report.summary import printable

    vars(error)["message"] = "\n".join(map(printable, error.message.split("\n")))
    error.show()
