"""ShardedTensor, in which FSDP1 keeps and ``load_sharded_optimizer_state_dict`` returns what is sharded."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from fsdp_compat.planning.mesh import device_of_group
from fsdp_compat.torch_.param_groups import group_of_sharded_tensor


def is_sharded_tensor(value: Any) -> bool:
    """Whether ``value`` is a ShardedTensor; torch's class by that name need not be imported for it."""
    return hasattr(value, "local_shards")


def whole_of(value: Any) -> torch.Tensor:
    """All of a ShardedTensor, on every rank of its process group, on the group's device. A collective.

    Raises ValueError if it is made up of fewer elements than it has, as after a part of the ranks was left out.
    """
    group = group_of_sharded_tensor(value)
    metadata, shards = value.metadata(), value.local_shards()
    device, size = device_of_group(group), tuple(metadata.size)
    held = torch.tensor(sum(shard.tensor.numel() for shard in shards), device=device)
    dist.all_reduce(held, group=group)
    whole = torch.zeros(size, dtype=metadata.tensor_properties.dtype, device=device)
    if held.item() != whole.numel():
        raise ValueError(f"a ShardedTensor of shape {size} has {held.item()} of {whole.numel()} elements on its ranks")
    for shard in shards:
        part = whole
        for dim, (offset, length) in enumerate(
            zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
        ):
            part = part.narrow(dim, offset, length)
        part.copy_(shard.tensor)
    # As bytes: every element is zero on all ranks but one, and so stays bit for bit what it is there.
    dist.all_reduce(whole.view(-1).view(torch.uint8), group=group)
    return whole
