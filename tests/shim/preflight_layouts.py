"""Models for the preflight whose classes or meshes FSDP2 takes badly; they are built on the workers of the pool."""

from __future__ import annotations

from abc import ABC
from typing import Generic, TypeVar

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_compat import preflight
from tests.device import DEVICE, KIND
from tests.shim.preflight_models import Built, Layer, Model, shard

Item = TypeVar("Item")


class AbstractFirst(ABC, Layer):
    """Its instances have another layout than those of a class with FSDPModule before it."""


class Derived(AbstractFirst):
    pass


class GenericFirst(Generic[Item], Layer):
    pass


class Empty:
    __slots__ = ()


class SlotsFirst(Empty, Layer):
    pass


class AbstractLast(Layer, ABC):
    pass


class Mixin:
    """It has an instance dictionary, as most classes have."""


class MixinFirst(Mixin, Layer):
    pass


class Other(nn.Module):
    pass


class Joined(Other, AbstractFirst):
    pass


LAYOUTS = (Layer, AbstractFirst, Derived, GenericFirst, SlotsFirst, AbstractLast, MixinFirst, Joined)


def abstract_first() -> Built:
    """FSDP1 wraps what FSDP2 cannot."""
    model = Model(0)
    model.layers = nn.ModuleList(Derived() for _ in range(4))
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Derived}), device_id=DEVICE), None, None


def abstract_first_unsharded() -> Built:
    model = Model(0)
    model.layers = nn.ModuleList(AbstractFirst() for _ in range(4))
    return model, None, None


def healthy_unsharded() -> Built:
    model = Model(0)
    model.layers = nn.ModuleList(AbstractLast() for _ in range(4))
    return model, None, None


def layouts(rank: int, world_size: int) -> dict[str, tuple[bool, bool]]:
    """Of each class: whether fully_shard raises for it, and whether the preflight says so of a model of it."""
    found = {}
    for cls in LAYOUTS:
        named = {one.check for one in preflight(cls()).suspicions}
        try:
            fully_shard(cls())
        except TypeError as error:
            found[cls.__name__] = ("object layout differs" in str(error), "class-layout" in named)
        else:
            found[cls.__name__] = (False, "class-layout" in named)
    return found


def groups_made(rank: int, world_size: int) -> tuple[int, int]:
    """Process groups that a model of five units makes with True, and with 2, as reshard_after_forward."""
    counts = []
    for reshard in (True, 2):
        before = dist.get_pg_count()
        shard(Model(), reshard_after_forward=reshard, mesh=init_device_mesh(KIND, (world_size,)))
        counts.append(dist.get_pg_count() - before)
    return counts[0], counts[1]
