"""The classes of units: a ModuleList or ModuleDict, which ``fully_shard`` does not take, and the name of any class."""

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


def keep_class_name(module: nn.Module) -> None:
    """Call the class that ``fully_shard`` has given to ``module`` as the one that it extends: ``Net``, not ``FSDPNet``.

    FSDP1's inner module keeps its class. Programs form keys and names of files of its name, and look classes up by it.
    """
    sharded = type(module)
    own = sharded.__mro__[sharded.__mro__.index(FSDPModule) + 1]
    sharded.__name__, sharded.__qualname__, sharded.__module__ = own.__name__, own.__qualname__, own.__module__
