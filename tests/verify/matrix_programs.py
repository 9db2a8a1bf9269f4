"""Parity programs recorded before and after a rewrite, and judged as ``fsdp-migrate verify`` judges them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fsdp_migrate.verify.comparison import ROUNDING, nudge_of, verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.verdict import Verdict
from fsdp_rules.settings import Settings
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.harness import NotRewrittenError, rewritten
from tests.parity.programs import STEPS, Program
from tests.parity.tolerance import EXACT, tolerance
from tests.pool import Pool


@contextlib.contextmanager
def recorded_beside_its_result() -> Iterator[None]:
    """What is entered around a program: it records to the folder of the file that its argument names.

    The second argument is what gradients are nudged by.
    """
    import importlib

    # The recorder listens to the helpers that it finds; in a run of the command it is told when they are imported.
    importlib.import_module("fsdp_compat")
    arm = importlib.import_module("fsdp_migrate.verify.recorder.arm")
    orders = importlib.import_module("fsdp_migrate.verify.recorder.orders")
    out, nudge = Path(sys.argv[1]).parent / "recording", float(sys.argv.pop())
    with fsdp1_on_cpu(), arm.recorded(orders.Orders(str(out), STEPS, stop=False, nudge=nudge)):
        yield


def record(pool: Pool, program: Program, source: str, directory: Path, nudge: float = 0.0) -> Recording:
    """Train ``source``, some version of ``program``, in the new folder ``directory``."""
    directory.mkdir()
    script = directory / "train.py"
    script.write_text(source, encoding="utf-8")
    arguments = [os.fspath(directory / "result.pt"), repr(nudge)]
    pool.run_script(script, program.world_size, arguments, prelude=recorded_beside_its_result)
    return read(directory / "recording")


def verdict(pool: Pool, program: Program, directory: Path) -> Verdict | None:
    """FSDP1 against what the rewriter makes of the program; None where it leaves that to a human."""
    try:
        source = rewritten(program.source, Settings())
    except NotRewrittenError:
        return None
    before = record(pool, program, program.source, directory / "before")
    after = record(pool, program, source, directory / "after")
    found = verdict_of(before, after)
    if found.cause is None or found.cause.cause not in ROUNDING:
        return found
    by = nudge_of(found)
    nudged = record(pool, program, program.source, directory / "nudged", by)
    return verdict_of(before, after, nudged=nudged, nudge=by)


def is_expected(program: Program, found: Verdict | None) -> bool:
    """Equal, or a program for which the parity matrix has a tolerance with its reason."""
    return found is None or found.first is None or tolerance(program.spec).relative > EXACT.relative
