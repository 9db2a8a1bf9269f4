"""The CRC-32 that ``torch.save`` keeps of each storage, computed again: whether the elements are those it wrote."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fsdp_migrate.checkpoints.entries import Bytes, Chunk, Damage, Entries, Item, Key, Runs, ValueEntry, tensors
from fsdp_migrate.checkpoints.read.archive import open_archive, whole
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.checkpoints.read.find import LIGHTNING_FILE, Kind
from fsdp_migrate.checkpoints.threads import mapped

#: As much as is in memory at once.
_BLOCK = 2**17


@dataclass(frozen=True)
class _Storage:
    file: Path
    start: int
    length: int
    crc: int | None
    name: str


def with_damage(checkpoint: Checkpoint, advance: Callable[[int], object] = lambda count: None) -> Checkpoint:
    """``checkpoint`` with the ``damage`` that its storages have; ``advance`` is called with the bytes of each.

    Reads all tensors, a block at a time. Safetensors have no digests.
    """
    if checkpoint.problems:
        return checkpoint
    if checkpoint.found.kind in (Kind.SAFETENSORS, Kind.PICKLE):
        return replace(checkpoint, undigested=True)
    found = []
    storages = list(_storages(checkpoint))
    for storage, problem in zip(storages, mapped(_problem, storages), strict=True):
        if problem:
            found.append(Damage(_keys(checkpoint, storage), problem))
        advance(storage.length)
    return replace(checkpoint, damage=tuple(found), undigested=lacks_digests(checkpoint))


def lacks_digests(checkpoint: Checkpoint) -> bool:
    """Whether elements of it have no digest, so that damage to them is not noticed."""
    if checkpoint.found.kind is Kind.SAFETENSORS:
        return True
    return any(storage.crc is None for storage in _storages(checkpoint) if storage.length)


def _problem(storage: _Storage) -> str:
    if storage.crc is None:
        return ""
    crc, left = 0, storage.length
    block = memoryview(bytearray(min(left, _BLOCK)))
    try:
        with storage.file.open("rb", buffering=0) as stream:
            stream.seek(storage.start)
            while left and (count := stream.readinto(block[:left])):
                crc = zlib.crc32(block[:count], crc)
                left -= count
    except OSError as error:
        return f"{storage.file}: could not read: {error.strerror or error}"
    if not left and crc == storage.crc:
        return ""
    return f"{storage.file}: the bytes of {storage.name} differ from what torch.save wrote (CRC-32)"


def _storages(checkpoint: Checkpoint) -> Iterator[_Storage]:
    for item in _archives(checkpoint):
        for name, (start, length, crc) in open_archive(item).storages.items():
            yield _Storage(item.file, start, length, crc, f"data/{name}")


def _archives(checkpoint: Checkpoint) -> Iterator[Item]:
    """Every archive of torch.save in the files, those inside of a folder's files among them."""
    if checkpoint.found.kind is not Kind.DCP:
        yield from (whole(file) for file in checkpoint.found.files)
        return
    yield from (whole(file) for file in checkpoint.found.files if file.name == LIGHTNING_FILE)
    stored = checkpoint.metadata.entries if checkpoint.metadata is not None else {}
    items = dict.fromkeys(item for entry in stored.values() for item in _items(entry) if item.length)
    yield from items


def _items(entry: object) -> Iterator[Item]:
    if isinstance(entry, ValueEntry):
        yield from (entry.where,) if entry.where is not None else ()
        return
    for chunk in (*getattr(entry, "chunks", ()), *getattr(entry, "replicas", ())):
        if isinstance(chunk.where, Item):
            yield chunk.where


def _keys(checkpoint: Checkpoint, storage: _Storage) -> tuple[Key, ...]:
    """The tensors whose elements lie in ``storage``, as the file that it is in names them."""
    files: list[Entries] = [file.entries for file in checkpoint.ranks.values() if file.path == storage.file]
    return tuple(
        key
        for entries in files or [checkpoint.entries]
        for key, entry in tensors(entries)
        if any(_touches(chunk, storage) for chunk in (*entry.chunks, *entry.replicas))
    )


def _touches(chunk: Chunk, storage: _Storage) -> bool:
    wheres = [run.where for run in chunk.where.parts] if isinstance(chunk.where, Runs) else [chunk.where]
    return any(_meets(where, storage) for where in wheres)


def _meets(where: Bytes | Item, storage: _Storage) -> bool:
    if where.file != storage.file:
        return False
    if isinstance(where, Item):
        return where.offset <= storage.start < where.offset + where.length
    return storage.start <= where.offset < storage.start + storage.length
