"""Signals that end the process by default end it by way of ``finally`` here, which clears up."""

from __future__ import annotations

import signal


def clear_up_when_stopped() -> None:
    """Let SIGTERM and SIGHUP end this process as an exit does; what the caller ignores (nohup) stays ignored."""
    # Windows has no SIGHUP.
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)


def _stop(number: int, frame: object) -> None:
    # Once is enough: a second signal would end the clearing up.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
