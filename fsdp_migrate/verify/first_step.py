"""Runs a program up to its first optimizer step, and reads what the preflight in it found."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.verify.recorder.orders import Orders
from fsdp_migrate.verify.runs import trees
from fsdp_migrate.verify.runs.launch import CannotRun, Run
from fsdp_migrate.verify.runs.launch import run as launch

if TYPE_CHECKING:
    from fsdp_migrate.verify.report.runs_progress import Progress


def run(command: tuple[str, ...], directory: Path, timeout: float | None, progress: Progress) -> list[dict[str, Any]]:
    """What rank 0 reports of each model. Raises :class:`CannotRun` with the reason."""
    found: list[dict[str, Any]] = _run("preflight", command, directory, timeout, progress)
    return found


def timed(command: tuple[str, ...], directory: Path, timeout: float | None, progress: Progress) -> dict[str, Any]:
    """Rank 0's first forward and backward, as ``fsdp_migrate.tune`` reads it. Raises :class:`CannotRun`."""
    found: dict[str, Any] = _run("tune", command, directory, timeout, progress)
    return found


def _run(purpose: str, command: tuple[str, ...], directory: Path, timeout: float | None, progress: Progress) -> Any:
    with tempfile.TemporaryDirectory(prefix=f"fsdp-migrate-{purpose}-") as work:
        out = Path(work, "found")
        orders = Orders(str(out), preflight=purpose == "preflight", times=purpose == "tune")
        wanted = Run("up to the first step", command, directory, Path(work, "output.log"), orders)
        launch(wanted, timeout, progress.begin(purpose, 1))
        file = out / f"{purpose}-0.json"
        if file.exists():
            return json.loads(file.read_text(encoding="utf-8"))
        raise CannotRun(_why(out, purpose))


def _why(out: Path, purpose: str) -> str:
    for file in sorted(out.glob("rank-*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["kind"] == "failed":
                return f"{purpose} failed in the program:\n{event['reason']}"
    return "the program ended without an optimizer step"


def run_both(
    command: tuple[str, ...], to: str, timeout: float | None, progress: Progress
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same of HEAD's code and of what rewrite makes of it, each in a copy."""
    source = trees.source(Path.cwd())
    with tempfile.TemporaryDirectory(prefix="fsdp-migrate-preflight-") as work:
        before, after = Path(work, "before"), Path(work, "after")
        trees.export(source.root, "HEAD", before)
        trees.copy(before, after)
        trees.rewrite(after, to)
        first, second = (run(command, tree / source.inside, timeout, progress) for tree in (before, after))
        return first, second
