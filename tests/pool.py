"""Persistent worker processes for tests that need a process group: torch is imported once per worker, not per test."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker, spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests import forked
from tests.pool_worker import FunctionJob, Prelude, ScriptJob, serve

ROOT = Path(__file__).resolve().parent.parent
# A rank that waits in a collective for one that failed is told so by gloo at once, when the failed one leaves.
GRACE_AFTER_FAILURE = 10.0
# Longer than any rank needs to leave its groups and clean up, on a machine with much else to do.
LEAVING = 60.0


class WorkerError(RuntimeError):
    """A job failed on at least one rank; the message holds the traceback of every rank that failed or hung."""


@dataclass(frozen=True)
class Output:
    """What a script printed on one rank."""

    stdout: str
    stderr: str


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    stacks: Path


class Pool:
    """At most ``size`` worker processes, started when first needed and kept until :meth:`close`."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._workers: list[_Worker] = []
        self._directory = tempfile.TemporaryDirectory(prefix="pool-")
        self._jobs = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 120) -> list[Any]:
        """Call ``fn(rank, world_size, *args)`` on ``world_size`` workers in a fresh group; results in rank order.

        ``fn`` stands at module level; arguments and results are pickled. The group is destroyed afterwards, and the
        worker's global state (RNG, default dtype, environment, working directory) is put back.

        :raises WorkerError: any rank raised, died, or gave no answer within ``timeout`` seconds.
        """
        with self._job_directory() as directory:
            job = FunctionJob(fn, args, str(directory / "store"), timeout)
            return self._run(job, world_size, timeout)

    def run_script(
        self,
        path: Path,
        world_size: int,
        argv: Sequence[str] = (),
        *,
        prelude: Prelude | None = None,
        timeout: float = 120,
    ) -> list[Output]:
        """Run the script at ``path`` as ``torchrun --nproc-per-node world_size`` would; what each rank printed.

        No group is initialised: that is the script's affair. ``prelude`` is a module-level function whose context
        manager is entered around the script. Modules from the script's directory are unloaded afterwards.

        :raises WorkerError: any rank raised, exited with another status than 0, died, or ran out of time.
        """
        with self._job_directory() as directory:
            job = ScriptJob(str(Path(path).resolve()), tuple(argv), prelude, _free_port(), str(directory))
            return [Output(*printed) for printed in self._run(job, world_size, timeout)]

    def close(self) -> None:
        """Stop all workers."""
        self._stop()
        self._directory.cleanup()

    @contextlib.contextmanager
    def _job_directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._directory.name) as directory:
            yield Path(directory)

    def _run(self, job: Callable[[int, int], Any], world_size: int, timeout: float) -> list[Any]:
        if not 1 <= world_size <= self.size:
            raise ValueError(f"world_size must be from 1 to {self.size}, the size of the pool; got {world_size}")
        message = pickle.dumps((_import_paths(), world_size, pickle.dumps(job)))
        self._start(world_size)
        ranks = {worker.connection: rank for rank, worker in enumerate(self._workers[:world_size])}
        for connection in ranks:
            connection.send_bytes(message)
        answers: dict[int, bytes] = {}
        failures: dict[int, str] = {}
        deadline = time.monotonic() + timeout
        while len(answers) + len(failures) < world_size:
            pending = [connection for connection, rank in ranks.items() if rank not in answers and rank not in failures]
            ready = wait(pending, max(0.0, deadline - time.monotonic()))
            if not ready:
                failures |= {ranks[connection]: self._stack(ranks[connection]) for connection in pending}
                self._stop()
            for connection in ready:
                assert isinstance(connection, Connection)
                succeeded, answer = self._receive(connection, ranks[connection])
                if succeeded:
                    answers[ranks[connection]] = answer
                else:
                    failures[ranks[connection]] = answer
                    deadline = min(deadline, time.monotonic() + GRACE_AFTER_FAILURE)
        failures |= self._leave([rank for rank in answers if self._workers])
        if failures:
            if not all(worker.process.is_alive() for worker in self._workers):
                self._stop()
            told = "\n".join(f"--- rank {rank} of {world_size}\n{text}" for rank, text in sorted(failures.items()))
            raise WorkerError(f"{len(failures)} of {world_size} ranks failed\n{told}")
        return [pickle.loads(answers[rank]) for rank in range(world_size)]

    def _leave(self, ranks: Sequence[int]) -> dict[int, str]:
        """Have the ``ranks`` that answered leave their groups, now that no other needs them; what failed there."""
        for rank in ranks:
            self._workers[rank].connection.send_bytes(b"leave")
        failures: dict[int, str] = {}
        for rank in ranks:
            if not self._workers[rank].connection.poll(LEAVING):
                failures[rank] = self._stack(rank)
                self._stop()
                break
            succeeded, text = self._receive(self._workers[rank].connection, rank)
            if not succeeded:
                failures[rank] = text
        return failures

    def _receive(self, connection: Connection, rank: int) -> tuple[bool, Any]:
        try:
            return pickle.loads(connection.recv_bytes())  # type: ignore[no-any-return]
        except EOFError:
            worker = self._workers[rank]
            worker.process.join()
            stack = worker.stacks.read_text(errors="replace")
            return False, f"the process died with exit code {worker.process.exitcode}\n{stack}"

    def _start(self, count: int) -> None:
        started = []
        for rank in range(len(self._workers), count):
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            stacks = Path(self._directory.name, f"stacks-{rank}-{time.monotonic_ns()}")
            process = context.Process(target=serve, args=(theirs, rank, str(stacks)), daemon=True)
            with _environment(OMP_NUM_THREADS="1", TORCH_SHOW_CPP_STACKTRACES="0", FORK_SERVER=str(rank)), _forked():
                process.start()
            theirs.close()
            started.append(_Worker(process, ours, stacks))
        self._workers += started
        for worker in started:
            worker.connection.recv_bytes()

    def _stack(self, rank: int) -> str:
        worker = self._workers[rank]
        if worker.process.pid is None or not worker.process.is_alive():
            return "no answer; the process is dead"
        os.kill(worker.process.pid, signal.SIGUSR1)
        limit = time.monotonic() + 5
        text = ""
        while (not text or text != worker.stacks.read_text()) and time.monotonic() < limit:
            text = worker.stacks.read_text()
            wait([worker.process.sentinel], 0.05)
        return f"no answer in time; it was killed here (most recent call first):\n{text}"

    def _stop(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.process.close()
            worker.connection.close()
        self._workers.clear()


def _import_paths() -> list[str]:
    return [str(ROOT), *(path for path in sys.path if path != str(ROOT))]


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _forked() -> Iterator[None]:
    """Processes of multiprocessing start by :data:`tests.forked.PYTHON`."""
    forked.start()
    # It outlives its first user, unlike what the servers have forked.
    resource_tracker.ensure_running()
    before = spawn.get_executable()
    spawn.set_executable(forked.PYTHON)
    try:
        yield
    finally:
        spawn.set_executable(before)


def _free_port() -> int:
    # Below the range from which Linux serves outgoing connections, so that gloo's own do not take it meanwhile.
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
