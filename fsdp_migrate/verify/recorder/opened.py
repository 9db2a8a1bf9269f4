"""Which files a run opened that an earlier run of the same comparison has written."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

from .orders import from_environment

#: Code, caches and installed packages: what is written there between two runs is no state of the training.
_CODE = (".py", ".pyc", ".so", ".pyd", ".lock")
_NO_STATE = (f"{os.sep}.cache{os.sep}", f"{os.sep}site-packages{os.sep}")
_MOST = 20
_began = 0.0
_found: dict[str, None] = {}


def watch() -> None:
    """Note each file from here on that is opened to be read, and was written after the first run began."""
    global _began
    orders = from_environment()
    if orders.since is None:
        return
    _began = _now()
    since, ours = orders.since, str(Path(orders.out).absolute()) + os.sep

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or len(_found) >= _MOST:
            return
        path, mode = arguments[0], arguments[1]
        if not isinstance(path, str) or not isinstance(mode, str) or not mode.startswith("r") or path.endswith(_CODE):
            return
        full = str(Path(path).absolute())
        if full.startswith((ours, "/proc/", "/sys/", "/dev/")) or any(part in full for part in _NO_STATE):
            return
        with contextlib.suppress(OSError):
            status = Path(full).stat()
            # A pipe keeps nothing from one run to the next.
            if stat.S_ISREG(status.st_mode) and since <= status.st_mtime < _began:
                _found[full] = None

    sys.addaudithook(hook)


def from_an_earlier_run() -> list[str]:
    """Absolute paths, in the order in which they were opened; 20 at most."""
    return list(_found)


def _now() -> float:
    import time

    return time.time()
