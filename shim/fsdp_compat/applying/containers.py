"""A ModuleList or ModuleDict as a unit, which ``fully_shard`` does not take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.distributed.fsdp import FSDPModule


@contextlib.contextmanager
def as_plain_module(module: nn.Module) -> Iterator[None]:
    """Let ``module`` be sharded inside, and be of its own class and FSDP2's afterwards, if it is a list or dictionary.

    ``fully_shard`` refuses those that have no forward, and in torch 2.6 those that have one too.
    """
    container = type(module)
    if not issubclass(container, nn.ModuleList | nn.ModuleDict):
        yield
        return
    module.__class__ = type(container.__name__, (nn.Module,), {"__module__": container.__module__})
    try:
        yield
    except BaseException:
        module.__class__ = container
        raise
    sharded = type(module)
    added = {name: value for name, value in vars(sharded).items() if name in ("__deepcopy__", "__module__")}
    module.__class__ = type(sharded.__name__, (FSDPModule, container), added)
