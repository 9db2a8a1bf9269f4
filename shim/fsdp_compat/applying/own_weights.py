"""What FSDP1 shards where each rank has built other weights: of every unit each rank's part of its own.

FSDP1 lays a unit's parameters out as one flat tensor and keeps of it the part that is the rank's, whatever the other
ranks have there. FSDP2 cuts each parameter by itself, elsewhere. Ranks that built the same weights need none of this.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from fsdp_compat.messages import log_once
from fsdp_compat.planning.flat_layout import flat_layout
from fsdp_compat.planning.options import Options

#: Elements of which a sum is formed at a time.
_CHUNK = 2**20


def assemble_own_weights(params: Sequence[nn.Parameter], options: Options, mesh: DeviceMesh, unit: str) -> None:
    """Give ``params``, a unit's in FSDP1's order, on all ranks the values that FSDP1 would have of them there.

    A collective over the ranks that shard the unit: two numbers of each rank, and all of its values where these differ.
    """
    group = mesh.get_group(mesh.ndim - 1)
    ranks = dist.get_world_size(group)
    plain = [param.detach() for param in params if not isinstance(param, DTensor)]
    if ranks == 1 or len(plain) < len(params) or not plain or len({one.dtype for one in plain}) > 1:
        return
    device = torch.device(mesh.device_type)
    total = sum(map(_checksum, plain)) % 2**62
    extremes = torch.tensor([total, -total], device=device)
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group)
    if extremes.sum().item() == 0:
        return
    log_once(
        f"the ranks built different weights for {unit or 'the root'}. As under FSDP1, each rank trains its part of the "
        "weights that it built. To start all ranks from the weights of the first rank, set sync_module_states=True"
    )
    places, size = flat_layout([one.numel() for one in plain], plain[0].dtype, options, ranks)
    flat = torch.zeros(size * ranks, dtype=plain[0].dtype, device=device)
    for param, first in zip(plain, places, strict=True):
        flat[first : first + param.numel()] = param.reshape(-1)
    own = flat.narrow(0, dist.get_rank(group) * size, size).clone()
    dist.all_gather([*torch.split(flat, size)], own, group=group)
    for param, first in zip(plain, places, strict=True):
        param.copy_(flat[first : first + param.numel()].view(param.shape))


def _checksum(tensor: torch.Tensor) -> int:
    """A number of the bytes of ``tensor`` and their order."""
    values, total = tensor.reshape(-1).contiguous().view(torch.uint8), 0
    weights = torch.arange(1, _CHUNK + 1, device=values.device)
    for number, chunk in enumerate(torch.split(values, _CHUNK), start=1):
        total += number * int((chunk * weights[: chunk.numel()]).sum())
    return total
