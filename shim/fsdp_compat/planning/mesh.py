"""From FSDP1's process groups, strategies and ``device_id`` to the DeviceMesh that ``fully_shard`` wants."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fsdp_compat.messages import log_once
from fsdp_compat.planning.options import HYBRID, Device, Options
from fsdp_compat.planning.tensor_parallel import first_dimension
from fsdp_compat.vocabulary import ShardingStrategy

# The order is FSDP2's: the outer dimension replicates, the inner one shards.
DIM_NAMES = ("replicate", "shard")


class MeshBuilder:
    """Builds each mesh once, however many units of one call ask for it. Every rank must ask in the same order."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self._built: dict[tuple[Any, ...], DeviceMesh] = {}

    def build(self, options: Options) -> DeviceMesh:
        """The mesh for one unit. Raises ValueError where its shape cannot be what the strategy needs."""
        layout = "hybrid" if options.strategy in HYBRID else options.strategy is ShardingStrategy.NO_SHARD
        group = options.process_group
        key = (layout, tuple(map(id, group)) if isinstance(group, tuple) else id(group), id(options.device_mesh))
        if key not in self._built:
            self._built[key] = self._new(options)
        return self._built[key]

    def _new(self, options: Options) -> DeviceMesh:
        if options.strategy in HYBRID:
            return self._hybrid(options)
        group = options.process_group
        if isinstance(group, tuple):
            raise ValueError(f"a tuple of process groups needs a hybrid strategy, not {options.strategy}")
        mesh = options.device_mesh
        if options.strategy is ShardingStrategy.NO_SHARD:
            return self._replicated(mesh.get_group(0) if mesh is not None else group)
        if mesh is not None:
            return self._along_first_dimension(mesh, options)
        if group is not None:
            return DeviceMesh.from_group(group, self.device_type)
        return init_device_mesh(self.device_type, (dist.get_world_size(),))

    def _along_first_dimension(self, mesh: DeviceMesh, options: Options) -> DeviceMesh:
        """What FSDP1 takes of ``mesh`` unless the strategy is hybrid."""
        if mesh.ndim == 1:
            return mesh
        log_once(
            f"{options.strategy} shards over the first dimension of device_mesh {mesh} only; the others have no effect"
        )
        return first_dimension(mesh) or DeviceMesh.from_group(mesh.get_group(0), self.device_type)

    def _replicated(self, group: dist.ProcessGroup | None) -> DeviceMesh:
        """Every rank keeps everything: a mesh of shape (ranks, 1), on which FSDP2 all-reduces as NO_SHARD does."""
        group = group if group is not None else dist.group.WORLD
        assert group is not None
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True, backend=dist.get_backend(group))
        ranks = torch.tensor(dist.get_process_group_ranks(group)).view(-1, 1)
        return DeviceMesh.from_group([group, alone], self.device_type, mesh=ranks, mesh_dim_names=DIM_NAMES)

    def _hybrid(self, options: Options) -> DeviceMesh:
        mesh, groups = options.device_mesh, options.process_group
        if mesh is not None:
            if mesh.mesh_dim_names is not None:
                return mesh
            pair = [mesh.get_group(0), mesh.get_group(1)]
            return DeviceMesh.from_group(pair, self.device_type, mesh=mesh.mesh, mesh_dim_names=DIM_NAMES)
        if isinstance(groups, tuple):
            shard, replicate = groups
            rows: list[Any] = [None] * dist.get_world_size(replicate)
            dist.all_gather_object(rows, dist.get_process_group_ranks(shard), group=replicate)
            return DeviceMesh.from_group(
                [replicate, shard], self.device_type, mesh=torch.tensor(rows), mesh_dim_names=DIM_NAMES
            )
        world = dist.get_world_size()
        per_node = ranks_per_node(options, self.device_type, world)
        return init_device_mesh(self.device_type, (world // per_node, per_node), mesh_dim_names=DIM_NAMES)


def ranks_per_node(options: Options, device_type: str, world: int) -> int:
    """Over how many of ``world`` ranks a hybrid strategy shards without a mesh: the devices of a node, as FSDP1 counts.

    Where those make no mesh, what torchrun says about the node. Raises ValueError if that makes none either.
    """
    devices: int = torch.get_device_module(device_type).device_count()
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    local = int(said) if said.isdecimal() else 0
    if world % devices == 0:
        if local not in (0, devices):
            log_once(
                f"{options.strategy} shards over the {devices} devices of a node, as FSDP1 does, though "
                f"LOCAL_WORLD_SIZE is {local}. Pass a 2D device_mesh (replicate, shard) to choose."
            )
        return devices
    if local and world % local == 0:
        log_once(
            f"{options.strategy} shards over the LOCAL_WORLD_SIZE={local} ranks of a node, because its {devices} "
            f"devices do not evenly divide the {world} ranks"
        )
        return local
    raise ValueError(
        f"{options.strategy} shards over the {devices} devices of a node, which do not evenly divide the {world} "
        f"ranks. Pass a 2D device_mesh (replicate, shard)."
    )


def compute_device(module: nn.Module, options: Options, ignored_params: set[nn.Parameter]) -> torch.device:
    """Where ``module`` is to compute: ``device_id``, else the mesh's, else its own device, else the accelerator.

    Raises ValueError if the module already lies on another accelerator device than ``device_id`` names, RuntimeError
    if it lies on several, or ``device_id`` names an accelerator where there is none.
    """
    own = {param.device for param in module.parameters() if param not in ignored_params}
    own = {device for device in own if device.type not in ("cpu", "meta")}
    if len(own) > 1:
        raise RuntimeError(
            f"FSDP only supports single device modules but got params on {', '.join(sorted(map(str, own)))}"
        )
    if options.device_id is not None:
        device = _with_index(_existing(options.device_id))
        if own and own != {device}:
            raise ValueError(
                f"Inconsistent compute device and `device_id` on rank {dist.get_rank()}: {own.pop()} vs {device}. "
                "Build the module on the CPU or on that device."
            )
        return device
    if options.device_mesh is not None:
        return _with_index(torch.device(options.device_mesh.device_type))
    if own:
        return own.pop()
    return _with_index(_accelerator() or torch.device("cpu"))


def device_of_group(group: dist.ProcessGroup | None) -> torch.device:
    """Where a tensor has to be for a collective over ``group`` (the default group if None)."""
    accelerator = _accelerator()
    if accelerator is None or dist.get_backend(group) == "gloo":
        return torch.device("cpu")
    return _with_index(accelerator)


def _accelerator() -> torch.device | None:
    # A torch built for an accelerator names it where there is none, or raises (2.6).
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def use_device(device: torch.device) -> None:
    """Make ``device`` the current one, since FSDP2 computes on the current device of the mesh's type."""
    if device.type != "cpu":
        torch.get_device_module(device.type).set_device(device)


def _existing(device: Device) -> torch.device:
    # A number alone names an accelerator's device, and torch.device(number) fails without one.
    names_accelerator = isinstance(device, int) or torch.device(device).type not in ("cpu", "meta")
    if names_accelerator and not torch.accelerator.is_available():
        raise RuntimeError(
            f"device_id={device} names an accelerator, but torch finds no accelerator on this machine. Pass "
            "device_id=torch.device('cpu') to train on the CPU."
        )
    return torch.device(device)


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return torch.device("cpu")
    if device.index is not None:
        return device
    return torch.device(device.type, torch.get_device_module(device.type).current_device())
