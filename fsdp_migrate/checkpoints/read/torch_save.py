"""Files of ``torch.save``: what they hold, read from the archive's directory and its pickle alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoints.entries import (
    BadCheckpoint,
    Entries,
    Item,
    Key,
    Sequences,
    TensorEntry,
    ValueEntry,
)
from fsdp_migrate.checkpoints.read import pieces
from fsdp_migrate.checkpoints.read.archive import Archive, open_archive, whole
from fsdp_migrate.checkpoints.read.archive import described as place_of
from fsdp_migrate.checkpoints.read.torch_tensors import Tensors, lost_attributes
from fsdp_migrate.checkpoints.read.unpickle import (
    Call,
    Dictionary,
    Global,
    Pickled,
    described,
    global_of,
)
from fsdp_migrate.checkpoints.read.unpickle import read as read_pickle

#: How protocol 2, which torch pickles with, spells bytes.
_BYTES = Global("_codecs", "encode")
#: Python refuses to spell numbers of more than 4,300 digits, and torch keeps none of more than 64 bits.
_LARGEST = 2**256
#: Each entry has the whole of its key, so that depth costs memory for all that is below.
_DEEPEST = 100
_PLAIN = (bool, int, float, complex, str, bytes)


@dataclass(frozen=True)
class TorchFile:
    """What one file of ``torch.save`` holds.

    ``names`` are all classes and functions that its pickle names. ``rank`` and ``world_size`` are those of the process
    that saved it, where a ShardedTensor or DTensor in it says so. ``fsdp1``: it carries a mark that FSDP1 alone leaves.
    ``sequences``: the keys of lists and tuples. ``of_modules``: those of dictionaries that ``Module.state_dict`` made,
    in the order of the module; who copies one into another dictionary loses the mark. ``lost``: what ``entries`` cannot
    say of a value or of a key, by the key: a key that is not a string or a number, attributes of a tensor.
    """

    path: Path
    names: frozenset[Global]
    records: frozenset[str]
    entries: Entries
    rank: int | None
    world_size: int | None
    fsdp1: bool
    sequences: Sequences = field(default_factory=dict)
    of_modules: frozenset[Key] = frozenset()
    lost: Mapping[Key, str] = field(default_factory=dict)


def read(path: Path) -> TorchFile:
    """What the file holds; none of its tensors is read.

    Raises :class:`BadCheckpoint` for anything that ``torch.save`` does not write.
    """
    return read_item(whole(path))


def read_item(item: Item) -> TorchFile:
    """As :func:`read`, for a file of ``torch.save`` inside another one."""
    archive = open_archive(item)
    return of(archive, read_pickle(archive.pickles["data.pkl"]))


def of(archive: Archive, pickled: Pickled) -> TorchFile:
    """As :func:`read`, for an archive whose ``data.pkl`` has been read."""
    if pickled.error is not None:
        raise BadCheckpoint(f"{place_of(archive.item)}: {pickled.error}")
    return _TorchFileOf(archive, pickled).made()


def tensor_in(item: Item) -> TensorEntry:
    """The one tensor that a chunk of torch.distributed.checkpoint holds, with its bytes' place in the file."""
    found = list(read_item(item).entries.items())
    if len(found) == 1 and found[0][0] == () and isinstance(found[0][1], TensorEntry):
        return found[0][1]
    raise BadCheckpoint(f"{place_of(item)}: contains something else where a tensor was expected")


class _TorchFileOf:
    """Turns what a pickle describes into entries."""

    def __init__(self, archive: Archive, pickled: Pickled) -> None:
        self._archive = archive
        self._pickled = pickled
        self._where = place_of(archive.item)
        self._around: set[int] = set()
        self._left = pickled.length
        self._tensors = Tensors(archive)
        self._fsdp1 = False
        self._sequences: Sequences = {}
        self._of_modules: set[Key] = set()
        self._lost: dict[Key, str] = {}

    def made(self) -> TorchFile:
        try:
            entries = dict(self._entries((), self._pickled.value))
        except RecursionError as error:
            raise BadCheckpoint(f"{self._where}: dictionaries or lists nested too deeply") from error
        return TorchFile(
            self._archive.item.file,
            self._pickled.names,
            self._archive.records,
            entries,
            self._tensors.rank,
            self._tensors.world_size,
            self._fsdp1 or self._tensors.fsdp1,
            self._sequences,
            frozenset(self._of_modules),
            self._lost,
        )

    def _entries(self, key: Key, value: Any) -> Iterator[tuple[Key, TensorEntry | ValueEntry]]:
        # What one pickle may hold twice by reference, it could hold 2**30 times in 30 steps.
        self._left -= 1
        if len(key) > _DEEPEST:
            raise BadCheckpoint(f"{self._where}: dictionaries or lists nested too deeply, more than {_DEEPEST} levels")
        if self._left < 0:
            raise BadCheckpoint(f"{self._where}: it contains more values than its pickle has bytes")
        if isinstance(value, Dictionary) and value.attributes is not None:
            versions = _versions(value.attributes)
            self._fsdp1 = self._fsdp1 or any("_fsdp_wrapped_module" in str(path) for path in versions)
            if versions:
                self._of_modules.add(key)
            if lost := lost_attributes(_set_on(value), {"_metadata"}):
                self._lost.setdefault(key, lost)
        if isinstance(value, dict | list | tuple) and value:
            if id(value) in self._around:
                raise BadCheckpoint(f"{self._where}: a dictionary or list that contains itself")
            self._around.add(id(value))
            if not isinstance(value, dict):
                self._sequences[key] = list if isinstance(value, list) else tuple
            names: set[str | int] = set()
            for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
                name = part if type(part) is int or isinstance(part, str) else self._odd(key, part, names)
                if isinstance(name, int) and abs(name) >= _LARGEST:
                    raise BadCheckpoint(f"{self._where}: a key that is a number of {name.bit_length()} bits")
                names.add(name)
                yield from self._entries((*key, name), inner)
            self._around.discard(id(value))
            return
        entry = self._tensors.of(value)
        if entry is not None and self._tensors.lost:
            self._lost.setdefault(key, self._tensors.lost)
        yield key, entry or self._plain(value)

    def _odd(self, key: Key, part: Any, names: set[str | int]) -> str:
        """A name for a key that is neither a text nor a number, unlike those of its neighbours."""
        name = f"<{described(part) if isinstance(part, _PLAIN) or part is None else _name(part)}>"
        while name in names:
            name += "'"
        place = (*key, name)
        self._lost[place] = f"its key is {_article(part)}, which no other format can store"
        return name

    def _plain(self, value: Any) -> ValueEntry:
        if isinstance(value, int) and abs(value) >= _LARGEST:
            return ValueEntry(made_by=f"a number of {value.bit_length()} bits")
        return _plain(value)


def _versions(attributes: Any) -> dict[Any, Any]:
    """The versions of its modules, which ``Module.state_dict`` sets on the dictionary that it makes."""
    versions = attributes.get("_metadata") if isinstance(attributes, dict) else None
    return versions if isinstance(versions, dict) else {}


def _set_on(value: Dictionary) -> dict[Any, Any]:
    """What a pickle sets on a dictionary; a state that is no dictionary counts as one attribute."""
    try:
        return pieces.attributes(value.attributes)
    except ValueError:
        return {"state": value.attributes}


def _plain(value: Any) -> ValueEntry:
    if isinstance(value, Dictionary):
        # An empty one, which a writer of pickles would otherwise name by the class of this reader.
        return ValueEntry({})
    if value is None or isinstance(value, (*_PLAIN, dict, list, tuple)):
        return ValueEntry(value)
    if isinstance(value, Call) and value.function == _BYTES:
        match value.arguments:
            case (str(text), "latin1") if text.isascii() or max(text) < "\u0100":
                return ValueEntry(text.encode("latin-1"))
    return ValueEntry(made_by=_name(value))


def _article(part: Any) -> str:
    return "None" if part is None else f"a {type(part).__name__}" if not isinstance(part, Call) else _name(part)


def _name(value: Any) -> str:
    if isinstance(value, _PLAIN) or value is None:
        return described(value)
    function = value.function if isinstance(value, Call) else global_of(value)
    return str(function) if function is not None else type(value).__name__
