"""FSDP around a model that ``parallelize_module`` has made tensor-parallel: which meshes go together.

``fully_shard`` shards such a parameter again, along the data-parallel dimension, if both dimensions come from one
mesh. Everything else fails deep inside torch, or in FSDP1 silently trains wrongly, and is refused here by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from fsdp_compat.messages import log_once
from fsdp_compat.planning.options import HYBRID, Options
from fsdp_compat.torch_.param_groups import root_mesh
from fsdp_compat.torch_.versions import HAS_UNEVEN_STRIDES, MOVES_STRIDED_CHECKPOINTS, TORCH
from fsdp_compat.vocabulary import ShardingStrategy


def check_tensor_parallel(params: Mapping[torch.Tensor, str], options: Options) -> None:
    """Raise for one unit whose tensor-parallel parameters FSDP2 cannot shard as ``options`` say.

    ``params`` are the unit's parameters with their names in the model; those that are no DTensors do not matter.
    Touches nothing and communicates nothing. Differs from FSDP1 in that sharding over the tensor-parallel ranks is an
    error instead of training that goes wrong, and that the whole mesh is accepted where its first dimension is the
    data-parallel one.

    Raises ValueError for a missing mesh, one of other ranks, or one that contains tensor-parallel ranks;
    NotImplementedError for NO_SHARD, and on torch that shards only evenly for a size that does not divide.
    """
    for param, fqn in params.items():
        if isinstance(param, DTensor):
            _check(param.device_mesh, fqn, options)
            if not HAS_UNEVEN_STRIDES:
                _check_on_old_torch(param, fqn, options)


def first_dimension(mesh: DeviceMesh) -> DeviceMesh | None:
    """The part of ``mesh`` along its first dimension, cut out so that it stays part of the same root mesh.

    None for a mesh without names, which torch cannot cut.
    """
    return None if mesh.mesh_dim_names is None else mesh[mesh.mesh_dim_names[0]]


def _check(tensor_parallel: DeviceMesh, fqn: str, options: Options) -> None:
    mesh, hybrid = options.device_mesh, options.strategy in HYBRID
    what = f"{fqn} is tensor-parallel over {_named(tensor_parallel)}"
    advice = _advice(mesh or tensor_parallel, tensor_parallel, hybrid)
    if mesh is None:
        instead = ", not process_group," if options.process_group is not None else ""
        raise ValueError(f"{what}, so device_mesh{instead} must define which ranks are data-parallel. {advice}")
    if options.strategy is ShardingStrategy.NO_SHARD:
        raise NotImplementedError(
            f"{what}, which FSDP2 does not combine with NO_SHARD. Use HYBRID_SHARD on a mesh of shape (ranks, 1, tp): "
            'init_device_mesh(device, (ranks, 1, tp), mesh_dim_names=("replicate", "shard", "tp")), tensor parallelism '
            'over mesh["tp"] and device_mesh=mesh["replicate", "shard"].'
        )
    if _ranks(root_mesh(mesh)) != _ranks(root_mesh(tensor_parallel)):
        raise ValueError(f"{what}, but device_mesh {_named(mesh)} is not part of the same mesh. {advice}")
    used = mesh if hybrid else first_dimension(mesh) or mesh
    if set(_ranks(used)) & set(_ranks(tensor_parallel)) != {dist.get_rank()}:
        raise ValueError(
            f"{what}, and device_mesh {_named(mesh)} would use the same ranks for data parallelism again: "
            f"they get the same data and have different shards. {advice}"
        )
    rest = set((mesh.mesh_dim_names or ())[1:]) - set(tensor_parallel.mesh_dim_names or ())
    if rest and not hybrid:
        raise ValueError(
            f"{what}, and {options.strategy} would use only the first dimension of device_mesh "
            f"{_named(mesh)}: the ranks along the others would train separately. {advice}"
        )


def _check_on_old_torch(param: DTensor, fqn: str, options: Options) -> None:
    assert options.device_mesh is not None
    shards = options.device_mesh.size(1 if options.strategy in HYBRID else 0)
    over_first = [dim for dim, placement in enumerate(param.placements) if placement.is_shard(0)]
    if not over_first or shards == 1:
        return
    if not MOVES_STRIDED_CHECKPOINTS:
        log_once(
            f"torch {TORCH} loads sharded checkpoints of parameters such as {fqn}, cut by both FSDP and tensor "
            f"parallelism, incorrectly into other mesh shapes: save FULL_STATE_DICT if the mesh may change, or use "
            f"torch 2.8"
        )
    parts = shards * math.prod(param.device_mesh.size(dim) for dim in over_first)
    if param.shape[0] % parts != 0:
        raise NotImplementedError(
            f"{fqn} has {param.shape[0]} rows, not a multiple of the {parts} ranks (tensor-parallel times "
            f"data-parallel), and torch {TORCH} refuses or misplaces uneven parts. Pad it to a multiple of {parts}, "
            f"or use "
            f"torch 2.10 or newer."
        )


def _ranks(mesh: DeviceMesh) -> list[int]:
    ranks: list[int] = mesh.mesh.flatten().tolist()
    return ranks


def _named(mesh: DeviceMesh) -> str:
    names = mesh.mesh_dim_names or ("?",) * mesh.ndim
    return "(" + ", ".join(f"{name}={size}" for name, size in zip(names, mesh.shape, strict=True)) + ")"


def _advice(mesh: DeviceMesh, tensor_parallel: DeviceMesh, hybrid: bool) -> str:
    root = root_mesh(mesh)
    taken = tensor_parallel.mesh_dim_names or ()
    names = [name for name in root.mesh_dim_names or () if name not in taken]
    if len(names) == (2 if hybrid else 1):
        return f"Pass device_mesh=mesh[{', '.join(map(repr, names))}] of the mesh {_named(root)}."
    if hybrid:
        return (
            'Build one mesh, init_device_mesh(device, (nodes, ranks, tp), mesh_dim_names=("replicate", "shard", "tp"))'
            ', parallelize over mesh["tp"] and pass device_mesh=mesh["replicate", "shard"].'
        )
    return (
        'Build one mesh, init_device_mesh(device, (ranks, tp), mesh_dim_names=("dp", "tp")), parallelize over '
        'mesh["tp"] and pass device_mesh=mesh["dp"]; with two data-parallel dimensions use HYBRID_SHARD.'
    )
