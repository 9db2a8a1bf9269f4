"""Runs a program with the recorder in it that looks, and merges what its ranks wrote."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.trace.record import Trace, merged
from fsdp_migrate.tree.git import repository
from fsdp_migrate.verify.recorder.orders import Orders
from fsdp_migrate.verify.recording.gpu_answers import answers
from fsdp_migrate.verify.runs.launch import CannotRun, Run
from fsdp_migrate.verify.runs.launch import run as launch

if TYPE_CHECKING:
    from fsdp_migrate.verify.report.runs_progress import Progress


@dataclass(frozen=True)
class Traced:
    """What a run showed, and what stopped it before its time (empty: nothing did)."""

    trace: Trace
    problem: str = ""


def traced(
    command: tuple[str, ...],
    directory: Path,
    steps: int,
    timeout: float | None,
    progress: Progress,
    root: Path | None = None,
    remap: tuple[Path, Path] | None = None,
    cpu: bool = False,
) -> Traced:
    """Run ``command`` in ``directory`` for so many optimizer steps, and look at the code below ``root``.

    That is the repository around ``directory`` where it is not given. ``remap`` is that of a :class:`Run`. ``cpu``:
    answer for the GPUs of a program that runs without one.

    Raises :class:`CannotRun` where nothing of the project was seen.
    """
    root = root or repository(directory.resolve()) or directory.resolve()
    with tempfile.TemporaryDirectory(prefix="fsdp-migrate-trace-") as work:
        out = Path(work, "ranks")
        orders = Orders(str(out), steps, observe=str(root), cpu=cpu)
        problem = ""
        try:
            launch(
                Run("under FSDP1", command, directory, Path(work, "output.log"), orders, remap),
                timeout,
                progress.begin("trace", steps),
            )
        except CannotRun as error:
            problem = str(error)
        on_cpu = answers(out)
        trace = merged([json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.glob("observed-*.json"))])
    if not trace.files:
        raise CannotRun(problem or _NOTHING.format(root=root))
    return Traced(replace(trace, notes=(*trace.notes, *on_cpu)), problem)


_NOTHING = (
    "the program ran no code below {root} that uses torch: run this in the project's folder; a Python that ignores "
    "PYTHONPATH (-I, -E, -S, or a launcher that clears the environment) cannot be traced"
)
