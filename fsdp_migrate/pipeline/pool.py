"""Many files over several processes, knowing at every moment which process holds which file."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

# Below either bound one process is done before others have started.
MIN_ITEMS = 16
MIN_BYTES = 256 * 1024

# A forked process has the parser imported already. The command runs no threads, so on Linux a fork is safe.
START_METHOD = "fork" if sys.platform == "linux" else "spawn"

_NO_MORE = "no more"


def worker_count(asked: int | None, sizes: Sequence[int]) -> int:
    """How many processes suit these files: ``asked`` (None: all processors) at most, 1 where more do not pay."""
    if len(sizes) <= MIN_ITEMS or sum(sizes) < MIN_BYTES:
        return 1
    processors = os.cpu_count() or 1
    return min(asked or processors, processors, len(sizes))


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    holds: int = -1


@dataclass
class Pool(Generic[Item, Value]):
    """Applies ``task`` to items. ``task`` must not raise; ``died`` makes the value of an item whose process ended."""

    task: Callable[[Item], Value]
    died: Callable[[Item], Value]
    jobs: int

    def run(self, items: Sequence[Item], order: Iterable[int], done: Callable[[], None]) -> list[Value]:
        """The values, in the order of ``items``. ``order`` says which to start first; ``done`` is called per item."""
        values: dict[int, Value] = {}
        if self.jobs == 1:
            for index in order:
                values[index] = self.task(items[index])
                done()
        else:
            self._run_parallel(items, deque(order), done, values)
        return [values[index] for index in range(len(items))]

    def _run_parallel(
        self, items: Sequence[Item], pending: deque[int], done: Callable[[], None], values: dict[int, Value]
    ) -> None:
        workers: dict[Connection, _Worker] = {}
        try:
            while pending and len(workers) < self.jobs:
                self._give(workers, self._start(), items, pending)
            while workers:
                for ready in wait(list(workers)):
                    worker = workers.pop(ready)  # type: ignore[call-overload]
                    try:
                        values[worker.holds] = worker.connection.recv()
                    except (EOFError, OSError):
                        worker.process.join()
                        values[worker.holds] = self.died(items[worker.holds])
                        worker = None
                    done()
                    if pending:
                        self._give(workers, worker or self._start(), items, pending)
                    elif worker:
                        worker.connection.send(_NO_MORE)
                        worker.process.join()
        finally:
            for worker in workers.values():
                worker.process.terminate()
                worker.process.join()

    def _start(self) -> _Worker:
        context: Any = multiprocessing.get_context(START_METHOD)
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, ours, self.task), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    @staticmethod
    def _give(workers: dict[Connection, _Worker], worker: _Worker, items: Sequence[Item], pending: deque[int]) -> None:
        worker.holds = pending.popleft()
        workers[worker.connection] = worker
        try:
            worker.connection.send(items[worker.holds])
        except OSError:
            # It died before it took the item; the closed connection is found by the next wait.
            return


def _serve(connection: Connection, parents: Connection, task: Callable[[Any], Any]) -> None:
    # Ctrl-C reaches the whole process group; the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A forked process has the parent's way to stop, which clears up what is the parent's.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # While any process holds the parent's end, the end of the parent goes unnoticed here.
    parents.close()
    try:
        while (item := connection.recv()) != _NO_MORE:
            connection.send(task(item))
    except (EOFError, OSError):
        # The parent is gone; nobody is left to tell.
        return
