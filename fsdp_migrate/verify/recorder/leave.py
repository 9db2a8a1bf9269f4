"""Ends the program when enough is recorded: all ranks together, with exit code 0."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch

_PATIENCE = timedelta(seconds=60)


def leave() -> None:
    """End this process once every rank has come here, or after a minute of waiting. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        _meet(dist.get_rank(), dist.get_world_size())
    # Not sys.exit: what a program does when it ends (saving, waiting for other ranks) belongs to a finished training.
    os._exit(0)


def _meet(rank: int, world: int) -> None:
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    try:
        store.set(f"fsdp_migrate/done/{rank}", "1")
        store.wait([f"fsdp_migrate/done/{other}" for other in range(world)], _PATIENCE)
        store.set(f"fsdp_migrate/gone/{rank}", "1")
        if rank == 0:
            # The store may live in this process: it is the last to leave.
            store.wait([f"fsdp_migrate/gone/{other}" for other in range(world)], _PATIENCE)
    except RuntimeError as error:
        # A rank that never comes is what the comparison reports: the number of steps that each rank recorded.
        print(f"fsdp-migrate: the other ranks did not reach this step: {error}", file=sys.stderr)  # noqa: T201
