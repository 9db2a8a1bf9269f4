"""Between a full tensor and this rank's shard of it, without communication where none is needed."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Shard


def shard_of(full: torch.Tensor, like: DTensor) -> torch.Tensor:
    """This rank's part of ``full``, cut as ``like`` is cut. No communication.

    ``full`` has the global shape of ``like`` and the same values on every rank; the result is a view of it.
    Raises NotImplementedError for placements that neither shard nor replicate.
    """
    coordinate = like.device_mesh.get_coordinate()
    if coordinate is None:
        raise RuntimeError(f"this rank is not part of the mesh {like.device_mesh}")
    local = full
    cuts: list[tuple[int, Any]] = [(dim, cut) for dim, cut in enumerate(like.placements) if not cut.is_replicate()]
    # A strided placement (FSDP around tensor parallelism) cuts up what the mesh dimensions after it leave.
    for mesh_dim, placement in sorted(cuts, key=lambda cut: _is_strided(cut[1])):
        if type(placement) is not Shard and not _is_strided(placement):
            raise NotImplementedError(
                f"cannot cut a tensor for the placement {placement}: parameters are sharded or replicated"
            )
        count, index = like.device_mesh.size(mesh_dim), coordinate[mesh_dim]
        chunks = torch.chunk(local, count, dim=placement.dim)
        # torch.chunk gives fewer chunks than asked for where dim is short: the last ranks then hold nothing.
        local = chunks[index] if index < len(chunks) else local.narrow(placement.dim, 0, 0)
    return local


def _is_strided(placement: Placement) -> bool:
    return hasattr(placement, "split_factor")


def shard_like(full: torch.Tensor, like: DTensor) -> DTensor:
    """``full`` as a DTensor with the mesh and placements of ``like``; dtype of ``full``, device of ``like``."""
    local = shard_of(full, like).to(like.to_local().device).clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=full.shape, stride=_contiguous_stride(full)
    )


def full_tensor(tensor: DTensor) -> torch.Tensor:
    """All of ``tensor`` on every rank, on the mesh's device. A collective: every rank of the mesh must call it.

    A shard that lives on the CPU under an accelerator mesh (CPU offload) is moved to the accelerator first, since
    the mesh's backend need not serve CPU tensors.
    """
    local = tensor.to_local()
    if local.device.type != tensor.device_mesh.device_type:
        tensor = DTensor.from_local(
            local.to(tensor.device_mesh.device_type),
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
    return tensor.full_tensor()


def whole_copy(tensor: DTensor) -> torch.Tensor:
    """:func:`full_tensor` in memory of its own, also where nothing is sharded. A collective."""
    whole = full_tensor(tensor).detach()
    shares = whole.untyped_storage().data_ptr() == tensor.to_local().untyped_storage().data_ptr()
    return whole.clone() if shares else whole


def holds_first_shard(tensor: DTensor) -> bool:
    """Whether this rank is the first of those that FSDP1 would have in ``tensor``'s process group."""
    mesh = tensor.device_mesh
    return mesh.get_local_rank(mesh.ndim - 1 if mesh.size(mesh.ndim - 1) > 1 else 0) == 0


def copy_into(target: DTensor, full: torch.Tensor) -> None:
    """Write this rank's part of ``full`` into ``target`` in place, so that whoever holds ``target`` sees it."""
    with torch.no_grad():
        target.to_local().copy_(shard_of(full, target))


def _contiguous_stride(full: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(full.shape, device="meta").stride()
