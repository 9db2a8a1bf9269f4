"""What several commands ask for in the same words: options, and what they come to beside pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from fsdp_migrate.tree.settings import ProjectSettings
    from fsdp_rules.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

JOBS = click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Maximum number of processes (default: one per CPU)."
)
_RULES: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--select", metavar="RULES", multiple=True, help="Only these rules: ids or prefixes, separated by commas."
    ),
    click.option("--ignore", metavar="RULES", multiple=True, help="All but these rules."),
    click.option("--helpers/--no-helpers", default=None, help="Whether FSDP2 code may call fsdp_compat (default: yes)"),
)


def rule_options(command: Command) -> Command:
    """Adds ``--select``, ``--ignore`` and ``--helpers``, which :func:`rule_settings` takes."""
    for option in reversed(_RULES):
        command = option(command)
    return command


def rule_settings(
    select: Sequence[str], ignore: Sequence[str], to: str | None, helpers: bool | None, defaults: ProjectSettings
) -> Settings:
    """What the rules go by: each option where it was given, else what the project's pyproject.toml says.

    Raises :class:`fsdp_migrate.report.rulebook.UnknownRule` for a name that no rule has.
    """
    from fsdp_migrate.report.rulebook import check_names, pages
    from fsdp_migrate.tree.settings import split_names
    from fsdp_rules.settings import Settings

    selected = split_names(select or defaults.select or ())
    ignored = split_names(ignore or defaults.ignore or ())
    if selected or ignored:
        check_names((*selected, *ignored), pages())
    return Settings(
        to=to or defaults.to or "native",
        helpers=next(value for value in (helpers, defaults.helpers, True) if value is not None),
        select=selected,
        ignore=ignored,
    )


def writable(name: str, option: str) -> Path:
    """``name`` as a file that can be written. Raises :class:`click.UsageError` where its folder is missing."""
    file = Path(name)
    if not file.absolute().parent.is_dir() or file.is_dir():
        raise click.UsageError(f"{option} {name}: there is no directory {file.parent} to write it to")
    return file
