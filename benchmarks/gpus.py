"""Which GPU a rank takes, also where there are more ranks than GPUs."""

from __future__ import annotations

import os

import torch


def take_gpu(rank: int) -> torch.device:
    """Make the GPU of ``rank`` this process's current one, before NCCL starts. Ranks beyond the GPUs share them.

    NCCL refuses two ranks on one GPU of one host. By ``NCCL_HOSTID`` those that share one are on hosts of their own to
    it, and talk over sockets: the same kernels add the same numbers, at another speed.
    """
    count = torch.cuda.device_count()
    if rank >= count:
        os.environ["NCCL_HOSTID"] = f"beyond-{rank // count}"
    device = torch.device("cuda", rank % count)
    torch.cuda.set_device(device)
    return device
