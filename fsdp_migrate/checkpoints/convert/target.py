"""Where a converted checkpoint goes: written beside its name, and put there once it is known to be whole."""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.entries import tensors

try:
    import fcntl
except ImportError:
    # Without locks nothing says whether another conversion still writes there, so none goes on with another's files.
    fcntl = None  # type: ignore[assignment]

_NO_FILES_OF_TORCH = (".safetensors", ".safetensors.index.json", ".metadata", ".distcp")
#: Headers, pickles and padding, for each tensor and for all.
_OVERHEAD_EACH = 4096
_OVERHEAD = 2**20
#: How much more elements than bytes a source may describe; a view of one element may have any shape.
_REPEATED = 1000
_REPEATED_ANYWAY = 2**26


def nbytes_of(state: State) -> int:
    """What the elements of all tensors take, without headers."""
    return sum(entry.nbytes for _, entry in tensors(state.entries))


def refuse(source: Path, target: Path) -> None:
    """Raise :class:`CannotConvert` where ``target`` is taken, lies in ``source``, or has no folder to lie in."""
    if os.path.lexists(target):
        raise CannotConvert(f"{target}: it already exists, and nothing is overwritten: choose another name")
    if not target.parent.is_dir():
        create = (
            "" if os.path.lexists(target.parent) else f": create it with mkdir -p {shlex.quote(str(target.parent))}"
        )
        raise CannotConvert(f"{target.parent}: no such folder{create}")
    if source.is_dir() and source.resolve() in Path(os.path.realpath(target)).parents:
        raise CannotConvert(f"{target}: it is inside the checkpoint that is read: choose a place outside {source}")


def refuse_name(target: Path, to_file: bool) -> None:
    """Raise :class:`CannotConvert` for a name by which its reader would take a file of ``torch.save`` for another."""
    if to_file and target.name.endswith(_NO_FILES_OF_TORCH):
        raise CannotConvert(f"{target}: a torch.save file with this name would not be read: call it {target.name}.pt")


def refuse_repetition(state: State, source: Path, files: Iterable[Path]) -> None:
    """Raise :class:`CannotConvert` where much more would be written than the files have, as views may repeat bytes."""
    needed, held = nbytes_of(state), sum(file.stat().st_size for file in files)
    if needed > _REPEATED * held + _REPEATED_ANYWAY:
        raise CannotConvert(
            f"{source}: it describes {needed:,} bytes of tensors but contains only {held:,}, more than {_REPEATED} "
            f"times fewer: its tensors repeat their elements; leave them out or save them in full"
        )


def refuse_small_disk(state: State, target: Path) -> None:
    """Raise :class:`CannotConvert` where the disk has less free than what is to be written."""
    needed = nbytes_of(state) + _OVERHEAD_EACH * len(state.entries) + _OVERHEAD
    free = shutil.disk_usage(target.parent).free
    held = sum(file.stat().st_blocks * 512 for folder in left_behind(target) for file in folder.rglob("*"))
    if free + held < needed:
        raise CannotConvert(f"{target}: it needs {needed:,} bytes, and the disk has {free:,} left; nothing was written")


def left_behind(target: Path) -> list[Path]:
    """What runs that were killed have left beside ``target``."""
    return sorted(target.parent.glob(f".{_escaped(target.name)}.partial-*"))


@contextmanager
def beside(target: Path, mark: str) -> Iterator[Path]:
    """A path beside ``target`` to write to. It becomes ``target`` when the block ends, and goes when it fails.

    What a killed conversion with the same ``mark`` has left is there already. Raises :class:`CannotConvert` for a disk
    that fills up meanwhile, and for a name that was taken meanwhile.
    """
    # Named before it is there: a signal may come at any time, and what is to be cleared up has to be known by then.
    folder = target.parent / f".{target.name}.partial-{mark}"
    lock = _Lock()
    try:
        if not lock.take(folder):
            folder = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
            folder.mkdir(mode=0o700)
        path = folder / target.name
        yield path
        _move(path, target)
        _sync(target.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise CannotConvert(
                f"{target}: {error.strerror}: failed while writing; the partial output was removed, the "
                "source is unchanged"
            ) from error
        raise
    finally:
        if lock.is_held or folder.name.rpartition("-")[2] != mark:
            shutil.rmtree(folder, ignore_errors=True)
        lock.drop()


class _Lock:
    """A folder that one conversion at a time writes in. The system drops the lock of one that was killed."""

    def __init__(self) -> None:
        self.is_held = False
        self._descriptor = -1

    def take(self, folder: Path) -> bool:
        """Make the folder if it is not there, and lock it; false where another process has it, or others may write."""
        if fcntl is None:
            return False
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(self._descriptor)
            # Who had the lock may have removed the folder that was opened, and others must not have put links in it.
            is_private = held.st_uid == os.getuid() and not held.st_mode & 0o77
            self.is_held = is_private and os.path.samestat(held, folder.stat())
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
        except BaseException:
            # A signal: only an empty folder is removed, which no other conversion has begun to write in.
            with suppress(OSError):
                folder.rmdir()
            raise
        return self.is_held

    def drop(self) -> None:
        """Leave the folder to others."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _move(path: Path, target: Path) -> None:
    """As ``os.rename``, which for files writes over what is there."""
    if path.is_dir():
        try:
            path.rename(target)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise CannotConvert(
                    f"{target}: another process has created it in the meantime: choose another name"
                ) from error
            raise
        return
    try:
        os.link(path, target)
    except FileExistsError as error:
        raise CannotConvert(f"{target}: another process has created it in the meantime: choose another name") from error
    except OSError:
        # Some file systems have no links.
        path.rename(target)


def sync(path: Path) -> None:
    """Wait until the disk has all bytes of the file, or of all files of the folder."""
    for file in path.rglob("*") if path.is_dir() else (path,):
        with file.open("rb+") as stream:
            os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        # Windows opens no folder, and writes their entries by itself.
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
