"""What ``status``, ``next`` and ``done`` begin with: a check of the sources, and the folder of their paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fsdp_migrate.check.checked import CheckResult
    from fsdp_migrate.trace.evidence import Evidence
    from fsdp_migrate.tree.selection import Selection


def base_of(path: Path) -> Path:
    """The folder that names are shown from: the repository, or without one the working directory.

    Of a tree elsewhere it is the top.
    """
    from fsdp_migrate.tree import git

    first = path.resolve()
    folder = first if first.is_dir() else first.parent
    return git.repository(folder) or (Path.cwd() if first.is_relative_to(Path.cwd()) else folder)


def under(base: Path, path: Path) -> PurePosixPath:
    """``path`` from ``base``, as both are named: a link keeps its own place."""
    return PurePosixPath(Path(os.path.relpath(path.absolute(), base)).as_posix())


def checked(
    paths: Sequence[str], jobs: int | None, trace: Evidence | None = None, cached: bool = False
) -> tuple[CheckResult, Selection]:
    """The check of ``paths`` with the project's settings, at level ``safe``, and the files that it selects.

    Raises :class:`click.ClickException` where it cannot run.
    """
    from fsdp_migrate.check import gate
    from fsdp_migrate.commands.options import rule_settings
    from fsdp_migrate.pipeline.engine import RulesEngine
    from fsdp_migrate.report.progress import shown
    from fsdp_migrate.report.rulebook import UnknownRule, pages
    from fsdp_migrate.tree import settings
    from fsdp_migrate.tree.cache import user_cache
    from fsdp_migrate.tree.files import NoSuchPath

    try:
        defaults = settings.load_first(map(Path, paths))
        wanted, _ = rule_settings((), (), None, None, None, Path(paths[0]), defaults)
        request = gate.CheckRequest(
            tuple(paths), wanted, jobs=jobs or defaults.jobs, selection=defaults.files, observe=trace,
            cache=user_cache() if cached else None,
        )  # fmt: skip
        with shown() as progress:
            result = gate.check(request, RulesEngine(), lambda: {page.id: page.name for page in pages()}, progress)
    except (NoSuchPath, UnknownRule, settings.SettingsError) as error:
        raise click.ClickException(str(error)) from error
    return result, defaults.files
