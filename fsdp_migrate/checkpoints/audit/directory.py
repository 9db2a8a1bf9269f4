"""The directory of an archive, from its bytes: the end record, the 64-bit one where there is one, and the entries."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoints.audit.inventory import Disagrees

_END = b"PK\x05\x06"
_FARTHEST = 2**16 + 22
_LARGE = 0xFFFFFFFF


@dataclass(frozen=True)
class Members:
    """The members of an archive by their names below its root: first byte in the file, and length."""

    file: Path
    item: int
    places: dict[str, tuple[int, int]]

    def content(self, name: str) -> bytes:
        """The bytes of a member."""
        start, length = self.places[name]
        with self.file.open("rb") as stream:
            stream.seek(start)
            return stream.read(length)


def members(file: Path, item: int, length: int) -> Members:
    """What is in the archive of ``length`` bytes that starts at byte ``item``. Raises :class:`Disagrees`."""
    try:
        with file.open("rb") as stream:
            stream.seek(item + max(0, length - _FARTHEST))
            tail = stream.read(min(length, _FARTHEST))
            at = tail.rindex(_END)
            number, size, start = struct.unpack("<HII", tail[at + 10 : at + 20])
            if tail[at - 20 : at - 16] == b"PK\x06\x07":
                (record,) = struct.unpack("<Q", tail[at - 12 : at - 4])
                stream.seek(item + record + 32)
                number, size, start = struct.unpack("<QQQ", stream.read(24))
            stream.seek(item + start)
            entries = _entries(stream.read(size), number)
            places = {}
            for name, (header, held) in entries.items():
                stream.seek(item + header + 26)
                name_length, extra = struct.unpack("<HH", stream.read(4))
                places[name] = (item + header + 30 + name_length + extra, held)
    except (OSError, ValueError, struct.error) as error:
        raise Disagrees(f"{file}: an archive that the second reader cannot read: {error}") from error
    root = next((name.removesuffix("data.pkl") for name in places if name.endswith("data.pkl")), None)
    if root is None:
        raise Disagrees(f"{file}: an archive without data.pkl")
    return Members(file, item, {name.removeprefix(root): place for name, place in places.items()})


def _entries(data: bytes, number: int) -> dict[str, tuple[int, int]]:
    """Of each member where its header is, and its length."""
    found: dict[str, tuple[int, int]] = {}
    at = 0
    for _ in range(number):
        if data[at : at + 4] != b"PK\x01\x02":
            raise ValueError("an invalid entry")
        (flags,) = struct.unpack("<H", data[at + 8 : at + 10])
        packed, length, name, extra, comment = struct.unpack("<IIHHH", data[at + 20 : at + 34])
        (header,) = struct.unpack("<I", data[at + 42 : at + 46])
        text = data[at + 46 : at + 46 + name].decode("utf-8" if flags & 0x800 else "cp437")
        more = data[at + 46 + name : at + 46 + name + extra]
        while len(more) >= 4:
            kind, held = struct.unpack("<HH", more[:4])
            if kind == 1:
                wide = [value for (value,) in struct.iter_unpack("<Q", more[4 : 4 + held // 8 * 8])]
                length = wide.pop(0) if length == _LARGE else length
                packed = wide.pop(0) if packed == _LARGE else packed
                header = wide.pop(0) if header == _LARGE else header
            more = more[4 + held :]
        if text in found or packed != length:
            raise ValueError(f"{text} twice, or compressed")
        found[text] = (header, length)
        at += 46 + name + extra + comment
    return found
