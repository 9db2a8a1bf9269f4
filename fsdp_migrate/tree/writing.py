"""Replacing a file so that every reader sees the old bytes or the new ones, never a part."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


class ChangedMeanwhile(OSError):
    """The file no longer holds what was read from it."""


def replace(path: Path, data: bytes, expected: bytes | None = None) -> None:
    """Put ``data`` into ``path``, keeping its mode and, where permitted, its owner.

    ``path`` must not be a symlink: resolve it first, or the link is replaced by a file. With ``expected``, raise
    :class:`ChangedMeanwhile` unless the file still holds exactly that. On any error the old file is untouched and
    no temporary file stays behind.
    """
    old = path.stat() if path.exists() else None
    if expected is not None and path.read_bytes() != expected:
        raise ChangedMeanwhile("it changed on disk after it was read; run again")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if old is None:
            temporary.chmod(0o666 & ~_umask())
        else:
            _keep_owner(temporary, old)
            temporary.chmod(stat.S_IMODE(old.st_mode))
        os.replace(temporary, path)  # noqa: PTH105  named here so that a test can make exactly this step fail
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _keep_owner(temporary: Path, old: os.stat_result) -> None:
    new = temporary.stat()
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) and hasattr(os, "chown"):
        # Only root may give files away; for anyone else the new file is theirs, as with any editor.
        with contextlib.suppress(PermissionError):
            os.chown(temporary, old.st_uid, old.st_gid)


def _umask() -> int:
    # The only portable way to read the mask is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
