"""The archives of ``torch.save``, alone in a file or inside one: their pickles, and where each storage lies."""

from __future__ import annotations

import io
import itertools
import stat
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoints.entries import BadCheckpoint, Item

#: A pickle of ``torch.save`` holds structure alone, 100 bytes a tensor; one that is larger is none.
PICKLE_LIMIT = 2**30

_MAGIC = b"PK\x03\x04"
#: The flags of an entry whose bytes are not its content: encrypted, strongly encrypted, masked.
_ENCRYPTED = 0x2041


@dataclass(frozen=True)
class Archive:
    """``pickles`` by name, and per storage the offset in the file, the length in bytes and the CRC-32.

    A CRC-32 is None where the archive has none, as torch.serialization.set_crc32_options(False) leaves them out.

    ``records`` are the names of everything else in it, which tell the version of torch that wrote it.
    """

    item: Item
    pickles: Mapping[str, bytes]
    storages: Mapping[str, tuple[int, int, int | None]]
    records: frozenset[str]
    little_endian: bool


def whole(path: Path) -> Item:
    """The file at ``path`` as an item that fills it. Raises :class:`BadCheckpoint` for one that cannot be read."""
    try:
        return Item(path, 0, path.stat().st_size)
    except OSError as error:
        raise BadCheckpoint(f"{path}: could not read: {error.strerror or error}") from error


def size_of(file: Path) -> int | None:
    """The size of a regular file; None where there is none, as for a name that is too long to be one."""
    try:
        held = file.stat()
    except (OSError, ValueError):
        return None
    return held.st_size if stat.S_ISREG(held.st_mode) else None


def starts_as_archive(item: Item) -> bool:
    """Whether torch would read this as an archive; it looks at the first four bytes alone."""
    return first_bytes(item, 4) == _MAGIC


def first_bytes(item: Item, count: int) -> bytes:
    """The first ``count`` bytes, or fewer where there are no more."""
    try:
        with item.file.open("rb") as stream:
            stream.seek(item.offset)
            return stream.read(min(count, item.length))
    except OSError as error:
        raise BadCheckpoint(f"{item.file}: could not read: {error.strerror or error}") from error


def open_archive(item: Item) -> Archive:
    """What lies in the archive. Raises :class:`BadCheckpoint` for anything that ``torch.save`` does not write."""
    where = described(item)
    try:
        with item.file.open("rb") as stream:
            window = _Window(stream, item.offset, item.length)
            with zipfile.ZipFile(window) as archive:
                return _read(item, window, archive)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, ValueError) as error:
        raise BadCheckpoint(f"{where}: not a complete archive of torch.save: {error}") from error
    except OSError as error:
        raise BadCheckpoint(f"{where}: could not read: {error.strerror or error}") from error


def described(item: Item) -> str:
    """The file, and the place in it where the item does not start it."""
    return f"{item.file}, from byte {item.offset}" if item.offset else str(item.file)


def _read(item: Item, window: _Window, archive: zipfile.ZipFile) -> Archive:
    where = described(item)
    infos: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in infos:
            raise BadCheckpoint(
                f"{where}: it contains {info.filename} twice, and programs differ in which one they read"
            )
        infos[info.filename] = info
    roots = [name.removesuffix("data.pkl") for name in infos if name.rpartition("/")[2] == "data.pkl"]
    if len(roots) != 1:
        many = "no data.pkl" if not roots else f"{len(roots)} of them"
        raise BadCheckpoint(f"{where}: torch.save writes one data.pkl, but this archive contains {many}")
    _refuse_overlaps(where, window, infos.values())
    checked = any(info.CRC for info in infos.values())
    storages: dict[str, tuple[int, int, int | None]] = {}
    for name, info in infos.items():
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise BadCheckpoint(f"{where}: {name} is compressed, which torch.save never does")
        if name.startswith(f"{roots[0]}data/"):
            offset = _data_offset(window, info)
            if offset + info.file_size > item.length:
                raise BadCheckpoint(f"{where}: {name} extends beyond the end of the file")
            storages[name.removeprefix(f"{roots[0]}data/")] = (
                item.offset + offset,
                info.file_size,
                info.CRC if checked else None,
            )
    pickles = {}
    for name, info in infos.items():
        if name.endswith(".pkl"):
            if info.file_size > PICKLE_LIMIT:
                raise BadCheckpoint(f"{where}: {name} would take {info.file_size} bytes")
            pickles[name.removeprefix(roots[0])] = _content(window, info, checked)
    order = infos.get(f"{roots[0]}byteorder")
    if order is not None and order.file_size > PICKLE_LIMIT:
        raise BadCheckpoint(f"{where}: {order.filename} would take {order.file_size} bytes")
    spelled = b"little" if order is None else _content(window, order, checked).strip()
    if spelled not in (b"little", b"big"):
        raise BadCheckpoint(f"{where}: its byte order is {spelled[:20]!r}, which is neither little nor big")
    records = frozenset(name.removeprefix(roots[0]) for name in infos if name.rpartition("/")[0] + "/" == roots[0])
    return Archive(item, pickles, storages, records, spelled == b"little")


def _refuse_overlaps(where: str, window: _Window, infos: Iterable[zipfile.ZipInfo]) -> None:
    """Raise :class:`BadCheckpoint` where members share bytes, by which a small file would hold any number of them."""
    spans = sorted((info.header_offset, _data_offset(window, info) + info.compress_size) for info in infos)
    if any(after < end for (_, end), (after, _) in itertools.pairwise(spans)):
        raise BadCheckpoint(f"{where}: parts of the archive overlap, which torch.save never writes")


def _content(window: _Window, info: zipfile.ZipInfo, checked: bool) -> bytes:
    """The bytes of an entry, which is stored as it is."""
    offset = _data_offset(window, info)
    window.seek(offset)
    data = window.read(info.file_size)
    if len(data) != info.file_size:
        raise zipfile.BadZipFile(f"{info.filename} reaches beyond the end of the file")
    if checked and zlib.crc32(data) != info.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {info.filename!r}")
    return data


def _data_offset(window: _Window, info: zipfile.ZipInfo) -> int:
    """Where an entry's data starts: behind its local header, whose extra field the directory does not know."""
    window.seek(info.header_offset)
    header = window.read(30)
    if len(header) != 30 or not header.startswith(_MAGIC):
        raise zipfile.BadZipFile(f"{info.filename} is not at the position that the archive's directory gives")
    if (info.flag_bits | int.from_bytes(header[6:8], "little")) & _ENCRYPTED:
        raise zipfile.BadZipFile(f"{info.filename} is encrypted")
    return info.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:], "little")


class _Window(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, stream: io.BufferedReader, offset: int, length: int) -> None:
        self._stream = stream
        self._offset = offset
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if base + position < 0:
            raise OSError("a position before the start")
        self._position = base + position
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._length - self._position)
        self._stream.seek(self._offset + self._position)
        data = self._stream.read(left if size is None or size < 0 else min(size, left))
        self._position += len(data)
        return data
