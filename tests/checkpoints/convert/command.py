"""The command in a process of its own, on checkpoints that take it a moment."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

FORMATS = ("dcp", "safetensors", "full")
COUNT, EACH = 192, 2**18
#: What the elements of the checkpoint take.
NBYTES = COUNT * EACH


def generate(path: Path) -> Path:
    """A file of ``torch.save`` with many tensors, 48 MiB in all; or a folder of them where ``path`` has no suffix."""
    import torch
    import torch.distributed.checkpoint as dcp

    made = torch.Generator().manual_seed(0)
    model = {f"layers.{number}.weight": torch.randn(EACH // 1024, 256, generator=made) for number in range(COUNT)}
    if path.suffix:
        torch.save({"model": model, "step": 3}, path)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp.save({"model": model, "step": 3}, checkpoint_id=path, no_dist=True)
    return path


def arguments(source: Path, target: Path, to: str, python: str = sys.executable) -> list[str]:
    """The command line."""
    return [python, "-m", "fsdp_migrate", "checkpoint", "convert", str(source), str(target), "--to", to]


def start(
    source: Path, target: Path, to: str, before: Callable[[], None] | None = None, python: str = sys.executable
) -> subprocess.Popen[str]:
    """The command, running; ``before`` runs in its process, which ``python`` starts."""
    # What a shell starts in the background ignores this signal, and so does everything that it starts in turn.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            arguments(source, target, to, python),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=before,
        )
    finally:
        signal.signal(signal.SIGINT, ours)


def partial(target: Path) -> list[Path]:
    """What lies beside ``target`` and was not there when the test began."""
    return sorted(target.parent.glob(f".{target.name}.partial-*"))


def written(target: Path) -> int | None:
    """The bytes that were written so far; None before the command has begun to write."""
    folders = partial(target)
    total = 0
    for folder in folders:
        for inner, _, names in os.walk(folder):
            for name in names:
                try:
                    total += Path(inner, name).stat().st_size
                except FileNotFoundError:
                    continue
    return total if folders else None


def signalled(process: subprocess.Popen[str], number: signal.Signals, target: Path, at: int) -> tuple[str, str]:
    """Send the signal as soon as ``at`` bytes are written, and wait for the end; what the command printed."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        done = written(target)
        if done is not None and done >= at:
            process.send_signal(number)
            break
        # The command needs the processor more than this loop does.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.001)
    return process.communicate(timeout=60)


def fingerprint(path: Path) -> dict[str, tuple[str, int]]:
    """Content and time of change of all files of a checkpoint."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        str(file): (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns)
        for file in files
        if file.is_file()
    }
