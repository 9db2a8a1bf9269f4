"""A folder of torch.distributed.checkpoint, written by torch itself with a planner that reads tensors when it must."""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.convert.state import CannotConvert, State, nested
from fsdp_migrate.checkpoints.convert.stream import TensorStream
from fsdp_migrate.checkpoints.entries import BadCheckpoint, Chunk, Key, TensorEntry, ValueEntry

#: The first file of the first rank.
_FILE = "__0_0.distcp"
#: Torch 2.6 has no such argument; it saves alone wherever there is no process group.
_ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in inspect.signature(save).parameters else {}
_REASONS = (MemoryError, OSError, BadCheckpoint, CannotConvert, KeyboardInterrupt, SystemExit)


def write(state: State, target: Path, stream: TensorStream) -> None:
    """Write the folder ``target``. Tensors keep the chunks of the source where these cover them exactly once.

    Keys are spelled as torch does: numbers are places in lists, and those of dictionaries become text.
    """
    if () in state.entries:
        raise CannotConvert("a single tensor has no key for torch.distributed.checkpoint")
    if () in state.sequences:
        raise CannotConvert("a list has no keys for torch.distributed.checkpoint")
    planner = _Planner(state, stream)
    writer = _Writer(target, stream)
    # Of a killed conversion; torch warns of it, and writes it last.
    (target / ".metadata").unlink(missing_ok=True)
    try:
        with warnings.catch_warnings():
            # It says that there is no process group, which is what was asked for.
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            save(planner.skeleton, storage_writer=writer, planner=planner, **_ALONE)
    except CheckpointException as error:
        # It is no Exception, and hides the full disk, the signal or the broken source that is to be told.
        for cause, _ in error.failures.values():
            raise _reason(cause) from error
        raise


def _reason(error: BaseException) -> BaseException:
    """What made torch fail: its archives, closed half written, raise an error of their own on top of it."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, _REASONS):
            return found
        found = found.__cause__ or found.__context__
    return error


class _Writer(FileSystemWriter):
    """One file. torch's own way of writing it keeps every tensor until the last is written."""

    def __init__(self, path: Path, stream: TensorStream) -> None:
        super().__init__(path)
        self._stream = stream

    def storage_meta(self) -> None:
        """Nothing: torch notes the path, which is a hidden one here, and a random id, so that no two runs are alike."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        with self._stream.opened(Path(self.path) / _FILE) as file:
            for item in plan.items:
                start = file.tell()
                # No name keeps what was written while the next is read.
                _put(file, planner.resolve_data(item))
                length = file.tell() - start
                results.append(WriteResult(item.index, length, _StorageInfo(_FILE, start, length)))
        written: Future[list[WriteResult]] = Future()
        written.set_result(results)
        return written


def _put(file: IO[bytes], data: torch.Tensor | io.BytesIO) -> None:
    if isinstance(data, io.BytesIO):
        file.write(data.getbuffer())
    else:
        torch.save(data, file)


class _Planner(DefaultSavePlanner):
    """Plans from shapes alone; a tensor in the state dictionary is a stand-in on the meta device."""

    def __init__(self, state: State, stream: TensorStream) -> None:
        super().__init__(flatten_state_dict=True)
        self._stream = stream
        self._held: dict[int, tuple[Key, TensorEntry]] = {}
        self._chunks: dict[MetadataIndex, tuple[Key, TensorEntry, Chunk | None]] = {}
        self.skeleton: dict[str, Any] = nested(state, self._stand_in)

    def create_local_plan(self) -> SavePlan:
        items = [item for name, value in self.state_dict.items() for item in self._items(name, value)]
        self.plan = SavePlan(items, planner_data=self.mappings)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type is WriteItemType.BYTE_IO:
            return super().resolve_data(write_item)
        key, entry, chunk = self._chunks[write_item.index]
        held = self._stream.whole(key) if chunk is None else self._stream.chunk(key, chunk)
        shape = entry.shape if chunk is None else chunk.sizes
        # No view of no bytes has elements of more than one.
        dtype = getattr(torch, entry.dtype)
        return torch.from_numpy(held).view(dtype).reshape(shape) if held.size else torch.empty(shape, dtype=dtype)

    def _stand_in(self, key: Key, entry: TensorEntry | ValueEntry) -> Any:
        if isinstance(entry, ValueEntry):
            return entry.value
        stand_in = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device="meta")
        self._held[id(stand_in)] = key, entry
        return stand_in

    def _items(self, name: str, value: Any) -> Iterator[WriteItem]:
        if id(value) not in self._held:
            yield WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO)
            return
        key, entry = self._held[id(value)]
        for place, chunk in enumerate(_chunks(entry)):
            offsets = chunk.offsets if chunk is not None else (0,) * len(entry.shape)
            sizes = chunk.sizes if chunk is not None else entry.shape
            data = TensorWriteData(
                ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)),
                TensorProperties(dtype=value.dtype),
                torch.Size(entry.shape),
            )
            index = MetadataIndex(name, torch.Size(offsets), place)
            self._chunks[index] = key, entry, chunk
            yield WriteItem(index, WriteItemType.SHARD, tensor_data=data)


def _chunks(entry: TensorEntry) -> list[Chunk | None]:
    """Those of the source, or None for the tensor as one."""
    held = [chunk for chunk in entry.chunks if chunk.numel]
    exactly = sum(chunk.numel for chunk in held) == entry.numel and not traits.missing(entry)
    return [*held] if held and exactly else [None]
