"""Where a converted checkpoint goes: written beside its name, and put there once it is known to be whole."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.entries import tensors

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
        raise CannotConvert(f"{target.parent}: no such folder")
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
            f"{source}: it describes {needed:,} bytes of tensors and has {held:,}, more than {_REPEATED} times fewer: "
            "its tensors repeat their elements; leave them out or save them as they are"
        )


def refuse_small_disk(state: State, target: Path) -> None:
    """Raise :class:`CannotConvert` where the disk has less free than what is to be written."""
    needed = nbytes_of(state) + _OVERHEAD_EACH * len(state.entries) + _OVERHEAD
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise CannotConvert(f"{target}: it needs {needed:,} bytes, and the disk has {free:,} left; nothing was written")


def left_behind(target: Path) -> list[Path]:
    """What runs that were killed have left beside ``target``."""
    return sorted(target.parent.glob(f".{_escaped(target.name)}.partial-*"))


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A path beside ``target`` to write to. It becomes ``target`` when the block ends, and goes when it fails.

    Raises :class:`CannotConvert` for a disk that fills up meanwhile, and for a name that was taken meanwhile.
    """
    # Named before it is there: a signal may come at any time, and what is to be cleared up has to be known by then.
    folder = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    path = folder / target.name
    try:
        folder.mkdir(mode=0o700)
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
        shutil.rmtree(folder, ignore_errors=True)


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
