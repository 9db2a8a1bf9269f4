"""``rewrite --why FILE:LINE``."""

from __future__ import annotations

from pathlib import Path

import click

from fsdp_migrate.pipeline.engine import RulesEngine
from fsdp_migrate.pipeline.request import Request
from fsdp_migrate.pipeline.run import rewrite
from fsdp_migrate.report.progress import shown
from fsdp_migrate.report.rewrite import reasons
from fsdp_migrate.tree.files import discover, real
from fsdp_rules.values.derivations import Derivations


def explain(place: tuple[str, int], request: Request) -> int:
    """Print why the expressions of a line are what they may be; 0.

    Raises :class:`click.UsageError` where the file of ``place`` is not a Python file of ``request``, or has no such
    line, and what :func:`fsdp_migrate.pipeline.run.rewrite` raises.
    """
    name, line = place
    wanted = real(Path(name))
    path = next((each.shown for each in discover(request.paths, request.selection) if each.path == wanted), None)
    if path is None or wanted.suffix != ".py":
        raise click.UsageError(f"--why {name}:{line}: {name} is not a Python file under {', '.join(request.paths)}")
    if line > len(wanted.read_bytes().splitlines()):
        raise click.UsageError(f"--why {name}:{line}: {name} has no line {line}")
    why = Derivations(path, line)
    with shown() as progress:
        result = rewrite(request, RulesEngine(why), progress)
    for text in reasons.lines(path, line, result, why):
        click.echo(text)
    return 0
