"""Files that a conversion writes, which may have been begun by one that was killed: what is right in them is kept."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

#: What is compared at a time: an archive's headers change once their member is written, and what follows them does not.
_BLOCK = 2**16
#: What the system copies at a time, as a signal waits for it.
_COPIED = 2**26


@contextlib.contextmanager
def opened(path: Path, keeps: Callable[[int], object]) -> Iterator[IO[bytes]]:
    """The file at ``path`` to write, whatever it has already. It ends where the writing did.

    ``keeps`` is called with the number of bytes that were there already as they are to be.
    """
    made = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    with os.fdopen(made, "r+b", buffering=0) as held:
        raw = _Kept(held, keeps)
        file = io.BufferedWriter(raw, _BLOCK)
        yield file
        file.flush()
        held.truncate(raw.end)


def copied(source: Path, offset: int, count: int, file: IO[bytes]) -> int:
    """Let the system copy bytes of ``source`` to where ``file`` is; how many of them it did, 0 where it cannot."""
    raw = getattr(file, "raw", None)
    if not isinstance(raw, _Kept) or not hasattr(os, "copy_file_range"):
        return 0
    file.flush()
    return raw.copied(source, offset, count)


class _Kept(io.RawIOBase):
    """Writes the bytes that are not there yet; compares, since no mark outlives a machine that lost its power."""

    def __init__(self, file: io.FileIO, keeps: Callable[[int], object]) -> None:
        self._file = file
        self._keeps = keeps
        self._length = os.fstat(file.fileno()).st_size
        self.end = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        at = self._file.tell()
        block = bytes(view[:_BLOCK]) if at < self._length else b""
        if block and self._file.read(len(block)) == block:
            self._keeps(len(block))
            done = len(block)
        else:
            self._file.seek(at)
            done = self._file.write(block or view)
        self.end = max(self.end, at + done)
        return done

    def copied(self, source: Path, offset: int, count: int) -> int:
        """As the function; of bytes that are all behind those which are there already."""
        at, done = self._file.tell(), 0
        # What fails here, as between two kinds of file systems, is written in the usual way, or fails there again.
        with contextlib.suppress(OSError), source.open("rb", buffering=0) as held:
            while at >= self._length and done < count:
                length = min(count - done, _COPIED)
                part = os.copy_file_range(held.fileno(), self._file.fileno(), length, offset + done)
                done += part
                if not part:
                    break
        self.end = max(self.end, at + done)
        return done
