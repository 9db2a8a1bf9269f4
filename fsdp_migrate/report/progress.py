"""How far the run is: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

    from fsdp_migrate.pipeline.request import Progress

_SECONDS_BETWEEN_DRAWS = 0.1


@contextlib.contextmanager
def shown() -> Iterator[Progress]:
    """What to tell while a command runs: it draws if standard error is a terminal."""
    if sys.stderr.isatty():
        with BarProgress() as bar:
            yield bar
    else:
        yield NoProgress()


@contextlib.contextmanager
def bytes_shown() -> Iterator[Callable[[str, int], Callable[[int], object]]]:
    """As :func:`shown`, for work on so many bytes: called with what is done and how many, it gives what to advance."""
    if not sys.stderr.isatty():
        yield lambda label, nbytes: lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True))
    rates = (TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, *rates, console=Console(stderr=True), transient=True) as bar:
        yield lambda label, nbytes: functools.partial(bar.advance, bar.add_task(label, total=nbytes))


class NoProgress:
    """For pipes and logs."""

    def start(self, phase: str, total: int) -> None:
        return

    def step(self) -> None:
        return


class BarProgress:
    """A bar on standard error, drawn by this thread: a second one would make forking workers unsafe."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
        self._task: TaskID | None = None
        self._drawn = 0.0

    def __enter__(self) -> BarProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start(self, phase: str, total: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(phase, total=total)
        self._bar.refresh()

    def step(self) -> None:
        if self._task is not None:
            self._bar.advance(self._task)
            now = time.monotonic()
            if now - self._drawn > _SECONDS_BETWEEN_DRAWS:
                self._drawn = now
                self._bar.refresh()
