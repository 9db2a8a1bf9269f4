"""Reading files of a project: whatever else lies under such a name, a pipe that would be waited for included, fails."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file. Anything else is an :class:`OSError`."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        return stream.read()


def text_of(path: Path, errors: str = "strict") -> str:
    """The same as UTF-8, with the line ends of Unix; ``errors`` as :meth:`bytes.decode` takes it."""
    return read_regular(path).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")
