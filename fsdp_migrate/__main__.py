"""``python -m fsdp_migrate``, and what the installed command runs."""

from __future__ import annotations

import os
import signal


def run() -> None:
    """Run the command. An interrupt ends it in one line from the start, while modules are still read."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    from fsdp_migrate.cli import entry_point

    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    entry_point()


def _interrupted(number: int, frame: object) -> None:
    os.write(2, b"interrupted: nothing was written\n")
    # An exception in the middle of an import ends up in whoever imports.
    os._exit(130)


if __name__ == "__main__":
    run()
