"""How far the runs are: step, seconds and the last line of output on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol

from fsdp_migrate.verify.runs.launch import Watch


class Progress(Protocol):
    """Whoever wants to know how far the runs are."""

    def begin(self, side: str, steps: int) -> Watch:
        """A run of so many steps begins; what to call while it goes."""


@contextlib.contextmanager
def shown() -> Iterator[Progress]:
    """Draws if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[seconds]:.0f} s", markup=False),
        TextColumn("{task.fields[line]}", markup=False, style="dim"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Drawn(bar)


class _Silent:
    def begin(self, side: str, steps: int) -> Watch:
        return lambda seconds, step, line: None


class _Drawn:
    def __init__(self, bar: object) -> None:
        self._bar = bar

    def begin(self, side: str, steps: int) -> Watch:
        from rich.progress import Progress as Bar

        bar = self._bar
        assert isinstance(bar, Bar)
        task = bar.add_task(side, total=steps, seconds=0.0, line="")
        return lambda seconds, step, line: bar.update(task, completed=step, seconds=seconds, line=line[:60])
