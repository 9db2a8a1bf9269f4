"""Which versions of torch can have written a checkpoint, from the records and names that came and went with them."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.checkpoints.read.unpickle import Global

_SHARDED_PROPERTIES = Global("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties")


@dataclass(frozen=True)
class Range:
    """The oldest and the newest version of torch that can have written it, as far as that can be told."""

    oldest: str | None
    newest: str | None

    def __str__(self) -> str:
        if self.oldest and self.newest:
            return f"torch {self.oldest} to {self.newest}"
        if self.oldest:
            return f"torch {self.oldest} or later"
        return f"torch {self.newest} or earlier" if self.newest else "unknown"


def torch_versions(checkpoint: Checkpoint) -> Range:
    """The versions of torch that can have written ``checkpoint``."""
    if checkpoint.metadata is not None:
        return _of_metadata(checkpoint)
    return _of_files(checkpoint)


def _of_metadata(checkpoint: Checkpoint) -> Range:
    metadata = checkpoint.metadata
    assert metadata is not None
    # The one value of all groups, which torch has flattened since 2.4.
    blob = any(key[-1] == "param_groups" for key in metadata.entries)
    if metadata.version is not None:
        return Range("2.9", None)
    if _SHARDED_PROPERTIES in metadata.names:
        return Range(None, "2.2")
    if blob:
        return Range("2.3" if "storage_meta" in metadata.fields else None, "2.3")
    grouped = any("param_groups" in key for key in metadata.entries)
    return Range("2.4" if grouped else "2.3" if "storage_meta" in metadata.fields else None, "2.9")


def _of_files(checkpoint: Checkpoint) -> Range:
    files = list(checkpoint.ranks.values())
    if not files:
        return Range(None, None)
    names = frozenset[Global]().union(*(file.names for file in files))
    records = frozenset.intersection(*(file.records for file in files))
    modules = {name.module for name in names}
    oldest = newest = None
    if "byteorder" in records:
        oldest = "2.1"
    if any(name.name == "DTensor" and name.module == "torch.distributed.tensor" for name in names):
        oldest = "2.5"
    if ".format_version" in records:
        oldest = "2.7"
    elif files:
        newest = "2.6"
    if "torch.distributed._mesh_layout" in modules:
        oldest = "2.9"
    if any(module.startswith("torch.distributed._tensor") for module in modules):
        newest = "2.4"
    return Range(oldest, newest)
