"""A checkpoint as a whole, whichever way it is stored: what it holds, what is wrong with it, what it would run."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.entries import (
    BadCheckpoint,
    Damage,
    Entries,
    Item,
    Key,
    Sequences,
    TensorEntry,
    ValueEntry,
    spelled,
    tensors,
)
from fsdp_migrate.checkpoints.read import dcp, safetensors
from fsdp_migrate.checkpoints.read import torch_save as torchfile
from fsdp_migrate.checkpoints.read.archive import first_bytes, open_archive, size_of, whole
from fsdp_migrate.checkpoints.read.danger import MOST_PICKLES
from fsdp_migrate.checkpoints.read.find import LFS_START, LIGHTNING_FILE, SPECIAL, Found, Kind, find, leads_out
from fsdp_migrate.checkpoints.read.find import world_size_in as named_world_size
from fsdp_migrate.checkpoints.read.ranks import together
from fsdp_migrate.checkpoints.read.seen import OLD_LIMIT, Seen, by_file
from fsdp_migrate.checkpoints.read.torch_save import TorchFile
from fsdp_migrate.checkpoints.read.unpickle import Global
from fsdp_migrate.checkpoints.read.unpickle import read as read_pickle

#: A file that the rank wrote whose number it has; a longer number is none of a rank.
_DCP_RANK = re.compile(r"__([0-9]{1,9})_")
#: What ``.metadata`` calls a file may have a million characters; a message shows its start.
_SHOWN = 1000
#: The ranks that a message names.
_MOST_NAMED = 8
#: How a file of ``torch.save`` from before torch 1.6 starts.
_OLD_MAGIC = 0x1950A86A20F9469CFC6C


@dataclass(frozen=True)
class Checkpoint:
    """What can be known of a checkpoint without reading its tensors or running its pickles.

    ``entries``: all that it holds. ``ranks``: the file of each rank, for rank files; a single file is rank 0's.
    ``rankwise``: keys that are not sharded and yet differ between ranks. ``problems``: why it is not whole.
    ``dangers``: files and what loading them would run. ``metadata``: of a DCP folder. ``names``: all classes and
    functions that its pickles name. ``sequences``: prefixes of keys that are lists and tuples. ``foreign``: files and
    the classes of programs that loading them needs. ``lost``: what the entry of a key cannot say, as :class:`TorchFile`
    has it. Once :mod:`digests` has looked, ``damage``: elements that were not saved so; ``undigested``: without digest.
    """

    found: Found
    entries: Entries
    world_size: int | None = None
    ranks: Mapping[int, TorchFile] = field(default_factory=dict)
    rankwise: tuple[Key, ...] = ()
    ties: tuple[tuple[Key, ...], ...] = ()
    problems: tuple[str, ...] = ()
    dangers: tuple[tuple[Path, tuple[Global, ...]], ...] = ()
    metadata: dcp.Metadata | None = None
    names: frozenset[Global] = frozenset()
    sequences: Sequences = field(default_factory=dict)
    foreign: tuple[tuple[Path, tuple[Global, ...]], ...] = ()
    lost: Mapping[Key, str] = field(default_factory=dict)
    damage: tuple[Damage, ...] = ()
    undigested: bool = False

    @property
    def path(self) -> Path:
        return self.found.path


def open_all(path: Path, passed_over: Callable[[Path], object] = lambda special: None) -> list[Checkpoint]:
    """The checkpoints at or under ``path``; ``passed_over`` as for :func:`find.find`.

    Broken ones are among them, with their ``problems``. Raises :class:`BadCheckpoint` where ``path`` is none.
    """
    return [open_found(found) for found in find(path, passed_over=passed_over)]


def open_found(found: Found) -> Checkpoint:
    """What the files of ``found`` hold; what is wrong with them is in the answer, never raised."""
    match found.kind:
        case Kind.DCP:
            return _Opening(found).folder()
        case Kind.SAFETENSORS:
            return _Opening(found).safetensors()
        case Kind.PICKLE:
            return _Opening(found).pickles()
        case _:
            return _Opening(found).torch_files()


class _Opening:
    def __init__(self, found: Found) -> None:
        self._found = found
        self._problems: list[str] = []
        self._seen = Seen()
        self._sequences: Sequences = {}
        self._lost: dict[Key, str] = {}

    def torch_files(self) -> Checkpoint:
        ranks: dict[int, TorchFile] = {}
        for rank, path in (self._found.ranks or {0: self._found.path}).items():
            file = self._torch_file(whole(path))
            if file is not None:
                ranks[rank] = file
        world_size = self._world_size(ranks)
        if not ranks:
            return self._made({}, world_size)
        try:
            joined = together(ranks)
        except BadCheckpoint as error:
            self._problems.append(str(error))
            return self._made({}, world_size, ranks)
        for file in ranks.values():
            self._sequences |= file.sequences
            self._lost |= file.lost
        self._check_ranks(world_size, joined.entries, joined.rankwise)
        return self._made(joined.entries, world_size, ranks, joined.rankwise)

    def folder(self) -> Checkpoint:
        outside = ((file, leads_out(file, self._found.path)) for file in self._found.files)
        self._problems += [f"{file}: {why}" for file, why in outside if why]
        if self._problems:
            return self._made({}, None)
        for file in self._found.files:
            if file.name == LIGHTNING_FILE:
                self._torch_file(whole(file))
        metadata = self._metadata()
        if metadata is None:
            return self._made({}, None)
        path = metadata.path
        broken = self._broken_files(metadata)
        entries: Entries = {}
        for key, entry in metadata.entries.items():
            if isinstance(entry, ValueEntry) and entry.where is not None and entry.where.file not in broken:
                entries |= self._value(key, entry.where)
            else:
                entries[key] = entry
            if isinstance(entry, TensorEntry):
                self._problems += self._seen.chunks(entry, broken)
            self._note_lists(key)
        self._problems += [f"{path}: the offset of {name} is missing" for name in sorted(set(metadata.unplaced))]
        self._check_coverage(entries, str(path))
        ranks = [int(told[1]) for file in metadata.files if (told := _DCP_RANK.match(file.name))]
        return self._made(entries, max(ranks, default=0) + 1, metadata=metadata)

    def _metadata(self) -> dcp.Metadata | None:
        """The folder's, or that of all ranks where each wrote its own; None where there is none that can be read."""
        files = [file for file in self._found.files if file.name == ".metadata" or file.suffix == ".metadata"]
        own = [file for file in files if file.name == ".metadata"]
        try:
            parts = []
            for file in own or sorted(files, key=lambda file: int(file.name[2:].partition(".")[0])):
                pickled = self._seen.pickles(file, dcp.content(file))
                parts.append(dcp.of(file, pickled[0] if pickled else read_pickle(b"")))
            if parts:
                return parts[0] if own else dcp.joined(parts)
            self._problems.append(f"{self._found.path}: .metadata is missing, and the folder cannot be read without it")
        except BadCheckpoint as error:
            self._problems.append(str(error))
        return None

    def safetensors(self) -> Checkpoint:
        try:
            return self._made(safetensors.read(self._found.files), None)
        except BadCheckpoint as error:
            self._problems.append(str(error))
            return self._made({}, None)

    def pickles(self) -> Checkpoint:
        """Pickles one after the other; torch wrote five, and then the storages, before it wrote archives."""
        path = self._found.path
        try:
            data = first_bytes(whole(path), OLD_LIMIT)
        except BadCheckpoint as error:
            self._problems.append(str(error))
            return self._made({}, None)
        if data.startswith(LFS_START):
            self._problems.append(f"{path}: this is a Git LFS pointer, not the file itself: run git lfs pull")
            return self._made({}, None)
        found = self._seen.pickles(path, data)
        needed = 5 if found and found[0].value == _OLD_MAGIC else 1
        read = found if len(found) > MOST_PICKLES else found[:needed]
        broken = next((pickled.error for pickled in read if pickled.error is not None), None)
        if broken is not None or len(found) < needed:
            self._problems.append(f"{path}: {broken or 'it is truncated'}")
        return self._made({}, None)

    def _torch_file(self, item: Item) -> TorchFile | None:
        try:
            archive = open_archive(item)
            pickled = {name: read_pickle(data) for name, data in archive.pickles.items()}
            for one in pickled.values():
                self._seen.note(item.file, one)
            return torchfile.of(archive, pickled["data.pkl"])
        except BadCheckpoint as error:
            self._problems.append(str(error))
            return None

    def _value(self, key: Key, item: Item) -> Entries:
        """What a value of torch.distributed.checkpoint is, with the key of each part of it."""
        file = self._torch_file(item)
        if file is None:
            return {key: ValueEntry(where=item)}
        self._sequences |= {(*key, *inner): kind for inner, kind in file.sequences.items()}
        self._lost |= {(*key, *inner): what for inner, what in file.lost.items()}
        return {(*key, *inner): entry for inner, entry in file.entries.items()}

    def _note_lists(self, key: Key) -> None:
        """torch.distributed.checkpoint spells all keys of dictionaries, so a number in a key is a place in a list."""
        for place, part in enumerate(key):
            if isinstance(part, int):
                self._sequences.setdefault(key[:place], list)

    def _broken_files(self, metadata: dcp.Metadata) -> set[Path]:
        ends: dict[Path, int] = dict.fromkeys(metadata.files, 0)
        for entry in metadata.entries.values():
            wheres = [entry.where] if isinstance(entry, ValueEntry) else [chunk.where for chunk in entry.chunks]
            for where in wheres:
                if isinstance(where, Item) and where.length:
                    ends[where.file] = max(ends[where.file], where.offset + where.length)
        broken = set()
        for file, end in sorted(ends.items()):
            size = size_of(file)
            if size is None:
                why = f"it is {SPECIAL if os.path.lexists(file) else 'missing'}"
            else:
                ends_early = f"it ends at byte {size}, but .metadata expects {end}" if size < end else ""
                why = leads_out(file, self._found.path) or ends_early
            if why:
                self._problems.append(f"{str(file)[:_SHOWN]}: {why}")
                broken.add(file)
        return broken

    def _world_size(self, ranks: Mapping[int, TorchFile]) -> int | None:
        if self._found.kind is not Kind.RANKS:
            return next((file.world_size for file in ranks.values()), None)
        told = [file.world_size for file in ranks.values() if file.world_size is not None]
        named = named_world_size(self._found.path.name)
        return max(*told, named or 0, max(self._found.ranks) + 1, 1)

    def _check_ranks(self, world_size: int | None, entries: Entries, rankwise: tuple[Key, ...]) -> None:
        present = self._found.ranks
        # A name or a pickle may say any number of ranks.
        numbers = (rank for rank in range(world_size or 0) if rank not in present)
        absent = [*itertools.islice(numbers, _MOST_NAMED + 1)] if self._found.kind is Kind.RANKS else []
        sliced = bool(set(traits.flat_parameters(entries)) or any(key in rankwise for key, _ in tensors(entries)))
        before = len(self._problems)
        self._check_coverage(entries, str(self._found.path))
        if self._found.kind is Kind.FILE and (world_size or 0) > 1 and len(self._problems) > before:
            self._problems.insert(before, f"{self._found.path}: file of one of {world_size} ranks; pass its folder")
        if absent and (sliced or len(self._problems) > before):
            many = ", ".join(map(str, absent[:_MOST_NAMED])) + (", …" if len(absent) > _MOST_NAMED else "")
            self._problems.insert(before, f"{self._found.path}: of {world_size} ranks, the files of {many} are missing")

    def _check_coverage(self, entries: Entries, where: str) -> None:
        try:
            gaps = [(key, entry, gap) for key, entry in tensors(entries) if (gap := traits.missing(entry))]
        except BadCheckpoint as error:
            self._problems.append(f"{where}: {error}")
            return
        if gaps:
            key, entry, gap = gaps[0]
            more = f", and {len(gaps) - 1} more tensors are incomplete" if len(gaps) > 1 else ""
            self._problems.append(f"{where}: {gap} of the {entry.numel} elements of {spelled(key)} are missing{more}")

    def _made(
        self,
        entries: Entries,
        world_size: int | None,
        ranks: Mapping[int, TorchFile] | None = None,
        rankwise: tuple[Key, ...] = (),
        metadata: dcp.Metadata | None = None,
    ) -> Checkpoint:
        found_ties = tuple(traits.ties(entries))
        problems = tuple(self._problems)
        return Checkpoint(
            self._found,
            entries,
            world_size,
            ranks or {},
            rankwise,
            found_ties,
            problems,
            by_file(self._seen.dangers),
            metadata,
            frozenset(self._seen.names),
            self._sequences,
            by_file(self._seen.foreign),
            self._lost,
        )
