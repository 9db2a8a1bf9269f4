"""Where this process stands, for the command to ask when a run does not end."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

from .orders import Orders

#: Launchers, which wait for their ranks and train nothing.
_LAUNCHERS = ("torchrun", "torch/distributed/run.py", "torch/distributed/launch.py", "accelerate")


def listen(orders: Orders) -> None:
    """Write this process's stack to a file of its own when SIGUSR2 comes; it is not written by Python code."""
    if not hasattr(faulthandler, "register") or (rank := os.environ.get("RANK")) is None or _launches():
        return
    folder = Path(f"{orders.out}-stacks")
    folder.mkdir(parents=True, exist_ok=True)
    # Stays open as long as the process lives.
    stream = (folder / f"{os.getpid()}.txt").open("w", encoding="utf-8")
    stream.write(f"{rank}\n")
    stream.flush()
    faulthandler.register(signal.SIGUSR2, file=stream, all_threads=False)


def _launches() -> bool:
    return sys.argv[:1] == ["-m"] or sys.argv[0].replace(os.sep, "/").endswith(_LAUNCHERS)
