"""Replacing a file so that every reader sees the old bytes or the new ones, never a part."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import stat
import sys
import tempfile
from pathlib import Path

_ANYONE_WRITES = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class ChangedMeanwhile(OSError):
    """The file no longer holds what was read from it."""


def replace(path: Path, data: bytes, expected: bytes | None = None) -> None:
    """Put ``data`` into ``path``, keeping its mode, its extended attributes and, where permitted, its owner.

    ``path`` must not be a symlink: resolve it first, or the link is replaced by a file. With ``expected``, raise
    :class:`ChangedMeanwhile` unless the file still holds exactly that. On any error, which a file of several names, one
    that is read-only, a pipe or device, and an attribute that cannot be kept are too, the old file is untouched and no
    temporary file is left; those that killed runs have left beside ``path`` are removed.
    """
    old = path.stat() if os.path.lexists(path) else None
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OSError("it is not a regular file")
    if old is not None and not (old.st_mode & _ANYONE_WRITES and os.access(path, os.W_OK)):
        # A new file in its place would need no permission to write to the old one.
        raise OSError("it is read-only")
    if expected is not None and path.read_bytes() != expected:
        raise ChangedMeanwhile("it changed on disk after it was read; run again")
    if old is not None and old.st_nlink > 1:
        raise OSError(f"it has {old.st_nlink} hard links, and the other names would keep the old text")
    # A name has 255 bytes at most, and a letter up to four of them.
    start = os.fsencode(path.name)[:80].decode("utf-8", "ignore")
    mine = f".{start}.fsdp-migrate-{_host()}-"
    _remove_left_behind(path.parent, mine)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{mine}{os.getpid()}-", suffix=".tmp")
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
            _keep_attributes(temporary, path)
            temporary.chmod(stat.S_IMODE(old.st_mode))
        os.replace(temporary, path)  # noqa: PTH105  named here so that a test can make exactly this step fail
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def answer(name: Path, data: bytes) -> None:
    """Put ``data`` where the user wants an answer to be: into a file, through links, or into a pipe or a device."""
    # Path.resolve raises for links that lead back to themselves up to Python 3.12.
    path = Path(os.path.realpath(name))
    if not os.path.lexists(path) or stat.S_ISREG(path.stat().st_mode):
        replace(path, data)
        return
    # A pipe that nobody reads is an error, and not waited for.
    descriptor = os.open(name, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "wb") as stream:
        if hasattr(os, "O_NONBLOCK"):
            os.set_blocking(descriptor, True)
        stream.write(data)


def _keep_owner(temporary: Path, old: os.stat_result) -> None:
    new = temporary.stat()
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) and hasattr(os, "chown"):
        # Only root may give files away; for anyone else the new file is theirs, as with any editor.
        with contextlib.suppress(PermissionError):
            os.chown(temporary, old.st_uid, old.st_gid)


def _keep_attributes(temporary: Path, path: Path) -> None:
    if not hasattr(os, "listxattr"):
        return
    try:
        held = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return
        raise
    has = {name: os.getxattr(temporary, name) for name in os.listxattr(temporary)}
    for name, value in held.items():
        if has.get(name) != value:
            try:
                os.setxattr(temporary, name, value)
            except OSError as error:
                raise OSError(f"its extended attribute {name} cannot be kept ({error.strerror})") from error


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "", platform.node())[:40]


def _remove_left_behind(folder: Path, start: str) -> None:
    """Remove the temporary files whose process on this machine is no more."""
    with os.scandir(folder) as entries:
        left = [entry.name for entry in entries if entry.name.startswith(start) and entry.name.endswith(".tmp")]
    for name in left:
        number = name.removeprefix(start).partition("-")[0]
        if number.isdecimal() and not _is_alive(int(number)):
            (folder / name).unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if sys.platform == "win32":
        # There os.kill would end it.
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _umask() -> int:
    # The only portable way to read the mask is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
