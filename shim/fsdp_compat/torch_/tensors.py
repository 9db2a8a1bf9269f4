"""Between a full tensor and this rank's shard of it, without communication where none is needed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard


def shard_of(full: torch.Tensor, like: DTensor) -> torch.Tensor:
    """This rank's part of ``full``, cut as ``like`` is cut. No communication.

    ``full`` has the global shape of ``like`` and the same values on every rank; the result is a view of it.
    Raises NotImplementedError for placements that neither shard nor replicate.
    """
    return _cut(full, like, range(len(like.placements)))


def _cut(local: torch.Tensor, like: DTensor, mesh_dims: Iterable[int]) -> torch.Tensor:
    coordinate = like.device_mesh.get_coordinate()
    if coordinate is None:
        raise RuntimeError(f"this rank is not part of the mesh {like.device_mesh}")
    cuts = [(mesh_dim, like.placements[mesh_dim]) for mesh_dim in mesh_dims]
    # A strided placement (FSDP around tensor parallelism) cuts up what the mesh dimensions after it leave.
    for mesh_dim, placement in sorted(cuts, key=lambda cut: _is_strided(cut[1])):
        if placement.is_replicate():
            continue
        if type(placement) is not Shard and not _is_strided(placement):
            raise NotImplementedError(
                f"cannot cut a tensor for the placement {placement}: parameters are sharded or replicated"
            )
        count, index = like.device_mesh.size(mesh_dim), coordinate[mesh_dim]
        dim: int = placement.dim  # type: ignore[attr-defined]
        chunks = torch.chunk(local, count, dim=dim)
        # torch.chunk gives fewer chunks than asked for where dim is short: the last ranks then hold nothing.
        local = chunks[index] if index < len(chunks) else local.narrow(dim, 0, 0)
    return local


def _is_strided(placement: Placement) -> bool:
    return hasattr(placement, "split_factor")


def shard_like(source: torch.Tensor, like: DTensor, *, copy: bool = True) -> DTensor:
    """``source`` as a DTensor with the mesh and placements of ``like``; dtype of ``source``, device of ``like``.

    ``source`` is all of it as a plain tensor, or a DTensor over the last dimensions of that mesh (tensor parallelism).
    Without ``copy`` the result shares its memory where it can.
    """
    data_dimensions = like.device_mesh.ndim - (source.device_mesh.ndim if isinstance(source, DTensor) else 0)
    local = _part(source, like, data_dimensions).to(like.to_local().device)
    return DTensor.from_local(
        local.clone(memory_format=torch.contiguous_format) if copy else local.contiguous(),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=source.shape,
        stride=_contiguous_stride(source.shape),
    )


def _part(source: torch.Tensor, like: DTensor, data_dimensions: int) -> torch.Tensor:
    if not isinstance(source, DTensor):
        return shard_of(source, like)
    local = source.redistribute(placements=like.placements[data_dimensions:]).to_local()
    return _cut(local, like, range(data_dimensions))


def full_tensor(tensor: DTensor) -> torch.Tensor:
    """All of ``tensor`` on every rank, on the mesh's device. A collective: every rank of the mesh must call it."""
    return _on_mesh_device(tensor).full_tensor()


def whole_copy(tensor: DTensor) -> torch.Tensor:
    """:func:`full_tensor` in memory of its own, also where nothing is sharded. A collective."""
    return _own_memory(full_tensor(tensor).detach(), tensor)


def gathered_copy(tensor: DTensor, data_dimensions: int) -> torch.Tensor:
    """``tensor`` gathered over the first ``data_dimensions`` of its mesh, in memory of its own. A collective.

    A plain tensor, or a DTensor over the dimensions that are left (tensor parallelism).
    """
    mesh, left = tensor.device_mesh, tensor.placements[data_dimensions:]
    if not left:
        return whole_copy(tensor)
    placements = [*[Replicate()] * data_dimensions, *left]
    local = _on_mesh_device(tensor).redistribute(placements=placements).to_local().detach()
    names = mesh.mesh_dim_names
    assert names is not None, "fully_shard accepts tensor-parallel parameters only over a mesh with dimension names"
    return DTensor.from_local(
        _own_memory(local, tensor),
        mesh[names[data_dimensions:]],
        left,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _on_mesh_device(tensor: DTensor) -> DTensor:
    # The mesh's backend need not serve the CPU, where offloaded shards live.
    local, mesh = tensor.to_local(), tensor.device_mesh
    if local.device.type == mesh.device_type:
        return tensor
    return DTensor.from_local(
        local.to(mesh.device_type), mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _own_memory(gathered: torch.Tensor, tensor: DTensor) -> torch.Tensor:
    shares = gathered.untyped_storage().data_ptr() == tensor.to_local().untyped_storage().data_ptr()
    return gathered.clone() if shares else gathered


def holds_first_shard(tensor: DTensor, data_dimensions: int) -> bool:
    """Whether this rank is the first of those that FSDP1 would have in ``tensor``'s process group."""
    mesh, last = tensor.device_mesh, data_dimensions - 1
    return mesh.get_local_rank(last if mesh.size(last) > 1 else 0) == 0


def copy_into(target: DTensor, source: torch.Tensor, data_dimensions: int) -> None:
    """Write this rank's part of ``source`` into ``target`` in place, so that whoever holds ``target`` sees it.

    ``source`` is what :func:`gathered_copy` gave of a tensor like ``target``, or all of it as a plain tensor.
    """
    with torch.no_grad():
        target.to_local().copy_(_part(source, target, data_dimensions))


def _contiguous_stride(shape: torch.Size) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()
