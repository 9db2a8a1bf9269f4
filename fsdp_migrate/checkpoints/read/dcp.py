"""Folders of torch.distributed.checkpoint: what ``.metadata`` says lies where. No other file of them is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from fsdp_migrate.checkpoints.entries import (
    BadCheckpoint,
    Chunk,
    Entries,
    Item,
    Key,
    TensorEntry,
    ValueEntry,
    spelled,
    unlike,
)
from fsdp_migrate.checkpoints.read import pieces
from fsdp_migrate.checkpoints.read.archive import PICKLE_LIMIT, first_bytes, whole
from fsdp_migrate.checkpoints.read.unpickle import Call, Global, Pickled, described, global_of
from fsdp_migrate.checkpoints.read.unpickle import read as read_pickle

_MISTAKES = (IndexError, KeyError, TypeError, ValueError, AttributeError)
#: Where ``.metadata`` says nothing of a chunk: the item has no length, so that nobody can read it.
_NOWHERE = Item(Path(), 0, 0)


@dataclass(frozen=True)
class Metadata:
    """What a ``.metadata`` holds. ``unplaced`` are chunks and values of which it does not say where they lie.

    ``nested``: it says how the keys were nested (``planner_data``); without that, every key is one name with dots.
    ``version`` is what it calls itself, which torch has done since 2.9 or 2.10. ``by_rank``: every rank wrote its own.
    """

    path: Path
    names: frozenset[Global]
    entries: Entries
    files: frozenset[Path]
    version: str | None
    nested: bool
    unplaced: tuple[str, ...] = ()
    fields: frozenset[str] = frozenset()
    by_rank: bool = False


def read(path: Path) -> Metadata:
    """What the ``.metadata`` at ``path`` holds; tensors and values of its checkpoint lie in :class:`Item`.

    Raises :class:`BadCheckpoint` for anything that torch.distributed.checkpoint does not write, names of files outside
    of the folder among it.
    """
    return of(path, read_pickle(content(path)))


def content(path: Path) -> bytes:
    """The pickle that the ``.metadata`` at ``path`` is. Raises :class:`BadCheckpoint` for one too large to be one."""
    item = whole(path)
    if item.length > PICKLE_LIMIT:
        raise BadCheckpoint(f"{path}: {item.length} bytes are too many for a .metadata")
    return first_bytes(item, item.length)


def of(path: Path, pickled: Pickled) -> Metadata:
    """As :func:`read`, for a ``.metadata`` whose pickle has been read."""
    if pickled.error is not None:
        raise BadCheckpoint(f"{path}: {pickled.error}")
    value = pickled.value
    if not isinstance(value, Call) or value.function.name != "Metadata":
        raise BadCheckpoint(f"{path}: a pickle, but not one that torch.distributed.checkpoint writes")
    try:
        return _MetadataOf(path, pickled.names, pieces.attributes(value)).made()
    except _MISTAKES as error:
        raise BadCheckpoint(f"{path}: not as torch.distributed.checkpoint writes it: {error}") from error


def joined(parts: Sequence[Metadata]) -> Metadata:
    """One from those that ranks wrote each for itself, ``__0.metadata`` and so on: all chunks, and the first's values.

    Raises :class:`BadCheckpoint` where they disagree about a tensor.
    """
    first = parts[0]
    entries: Entries = dict(first.entries)
    for part in parts[1:]:
        for key, entry in part.entries.items():
            held = entries.setdefault(key, entry)
            if isinstance(held, TensorEntry) and held is not entry:
                if not isinstance(entry, TensorEntry) or (held.shape, held.dtype) != (entry.shape, entry.dtype):
                    raise BadCheckpoint(f"{part.path}: {spelled(key)} is a different tensor than in {first.path.name}")
                chunks, copies = unlike((*held.chunks, *entry.chunks))
                entries[key] = replace(held, chunks=chunks, replicas=(*held.replicas, *copies))
    files = frozenset[Path]().union(*(part.files for part in parts))
    unplaced = tuple(name for part in parts for name in part.unplaced)
    return replace(first, entries=entries, files=files, unplaced=unplaced, by_rank=True)


class _MetadataOf:
    def __init__(self, path: Path, names: frozenset[Global], fields: Mapping[str, Any]) -> None:
        self._path = path
        self._names = names
        self._fields = fields
        self._unplaced: list[str] = []
        self._files: set[Path] = set()
        self._places = dict(self._storage(fields.get("storage_data")))

    def made(self) -> Metadata:
        nesting = self._fields.get("planner_data")
        nesting = nesting if isinstance(nesting, dict) else {}
        entries: Entries = {}
        for name, told in self._fields["state_dict_metadata"].items():
            key = _key(name, nesting)
            entries[key] = self._entry(str(name), told)
        version = self._fields.get("version")
        return Metadata(
            self._path,
            self._names,
            entries,
            frozenset(self._files),
            version if isinstance(version, str) else None,
            bool(nesting),
            tuple(self._unplaced),
            frozenset(map(str, self._fields)),
        )

    def _storage(self, stored: Any) -> Iterator[tuple[tuple[str, tuple[int, ...] | None], Item]]:
        for index, info in (stored or {}).items():
            place, name = pieces.attributes(info), pieces.attributes(index)
            if not isinstance(name["fqn"], str) or not isinstance(place["relative_path"], str):
                raise ValueError("a name that is not text")
            if place.get("transform_descriptors"):
                raise ValueError(f"{name['fqn']} is stored through {described(place['transform_descriptors'])}")
            offset, length = pieces.integers((place["offset"], place["length"]))
            start = name.get("offset")
            file = self._file(place["relative_path"])
            self._files.add(file)
            yield (name["fqn"], None if start is None else pieces.integers(start)), Item(file, offset, length)

    def _file(self, name: str) -> Path:
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or "\\" in name or "\0" in name:
            raise ValueError(f"it refers to the file {name!r}, which is not in its folder")
        return self._path.parent / relative

    def _entry(self, name: str, described: Any) -> TensorEntry | ValueEntry:
        if described.function.name != "TensorStorageMetadata":
            return ValueEntry(where=self._place(name, None))
        fields = pieces.attributes(described)
        shape = pieces.integers(fields["size"])
        dtype, requires_grad = _properties(fields["properties"])
        chunks = []
        for chunk in fields["chunks"]:
            of = pieces.attributes(chunk)
            offsets, sizes = pieces.integers(of["offsets"]), pieces.integers(of["sizes"])
            if len(offsets) != len(shape) or any(
                first + size > end for first, size, end in zip(offsets, sizes, shape, strict=True)
            ):
                raise ValueError(f"{name} has a chunk that extends beyond its shape {shape}")
            where = self._place(name, offsets, needed=0 not in sizes)
            chunks.append(Chunk(offsets, sizes, where or _NOWHERE))
        return TensorEntry(shape, dtype, tuple(chunks), requires_grad=requires_grad)

    def _place(self, name: str, offsets: tuple[int, ...] | None, needed: bool = True) -> Item | None:
        found = self._places.get((name, offsets))
        if found is None and offsets is not None and not any(offsets):
            found = self._places.get((name, None))
        if found is None and needed:
            self._unplaced.append(name)
        return found


def _key(name: Any, nesting: Mapping[Any, Any]) -> Key:
    path = nesting.get(name)
    if isinstance(path, tuple) and path and all(isinstance(part, str | int) for part in path):
        return path
    return (str(name),)


def _properties(value: Any) -> tuple[str, bool]:
    """dtype and requires_grad, from a state that torch has written as a tuple and as a dictionary."""
    if isinstance(value.state, tuple) and value.state and global_of(value.state[0]) is not None:
        return pieces.dtype_name(value.state[0]), value.state[2] is True
    fields = pieces.attributes(value)
    return pieces.dtype_name(fields["dtype"]), fields.get("requires_grad") is True
