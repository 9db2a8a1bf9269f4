"""A unit's tensors before they are sharded: off the meta device, contiguous, on the device, equal on all ranks.

The order is FSDP1's, unit by unit, so that random initialisation draws the same numbers.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

_BROADCAST_BYTES = 250 * 2**20


def materialize(
    unit: nn.Module,
    param_init_fn: Callable[[nn.Module], None] | None,
    device: torch.device,
    ignored_modules: Collection[nn.Module],
) -> None:
    """Give the unit's meta tensors storage and values: ``param_init_fn`` on each module, else ``reset_parameters``.

    Without ``param_init_fn`` only modules that hold a meta tensor are initialised; FSDP1 would also overwrite what
    is already there. As under FSDP1, a parameter of several modules becomes one for each that makes its own.
    Raises TypeError naming the module that has no ``reset_parameters``.
    """
    modules = _own_modules(unit, ignored_modules)
    if not any(tensor.is_meta for module in modules for tensor in _own_tensors(module)):
        return
    for module in modules:
        if param_init_fn is not None:
            param_init_fn(module)
        elif any(tensor.is_meta for tensor in _own_tensors(module)):
            _reset(module, device)


def _reset(module: nn.Module, device: torch.device) -> None:
    reset = getattr(module, "reset_parameters", None)
    if not callable(reset):
        raise TypeError(
            f"{type(module).__name__} has meta tensors but no reset_parameters(): define it, or pass param_init_fn "
            f"to initialise it"
        )
    with torch.no_grad():
        module.to_empty(device=device, recurse=False)
        reset()


def _own_modules(unit: nn.Module, ignored_modules: Collection[nn.Module]) -> list[nn.Module]:
    """The unit's modules breadth first, nested units and ignored modules left out."""
    found: dict[nn.Module, None] = {unit: None}
    queue = deque([unit])
    while queue:
        for child in queue.popleft().children():
            if child not in found and child not in ignored_modules and not isinstance(child, FSDPModule):
                found[child] = None
                queue.append(child)
    return list(found)


def _own_tensors(module: nn.Module) -> Iterable[torch.Tensor]:
    return itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False))


def own_buffers(unit: nn.Module, ignored_modules: Collection[nn.Module]) -> list[torch.Tensor]:
    """The buffers that the unit moves to its device: those of nested units and ignored modules are not among them."""
    return [buffer for module in _own_modules(unit, ignored_modules) for buffer in module.buffers(recurse=False)]


def move_to(device: torch.device, params: Iterable[nn.Parameter], buffers: Iterable[torch.Tensor]) -> None:
    """Move tensors in place and lay parameters out contiguously, which FSDP2 insists on; objects stay the same."""
    with torch.no_grad():
        for param in params:
            if not isinstance(param, DTensor):
                param.data = param.data.to(device).contiguous()
                if param.grad is not None:
                    param.grad.data = param.grad.data.to(device).contiguous()
        for buffer in buffers:
            buffer.data = buffer.data.to(device)


def broadcast_from_first_rank(tensors: Iterable[torch.Tensor], mesh: DeviceMesh) -> None:
    """Overwrite ``tensors`` with those of the mesh's first rank, as ``sync_module_states=True`` does."""
    detached = [tensor.detach() for tensor in tensors]
    plain = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in detached]
    for mesh_dim in range(mesh.ndim):
        if mesh.size(mesh_dim) > 1:
            group = mesh.get_group(mesh_dim)
            for bucket in _buckets(plain):
                _broadcast(bucket, group, torch.device(mesh.device_type))


def _buckets(tensors: Iterable[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        if bucket and sum(part.nbytes for part in bucket) + tensor.nbytes > _BROADCAST_BYTES:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _broadcast(tensors: list[torch.Tensor], group: dist.ProcessGroup, device: torch.device) -> None:
    # As bytes, so that one collective serves all dtypes, those that a backend does not know among them.
    flat = torch.cat([_as_bytes(tensor).to(device) for tensor in tensors])
    dist.broadcast(flat, src=dist.get_global_rank(group, 0), group=group)
    parts = torch.split(flat, [tensor.nbytes for tensor in tensors])
    for tensor, values in zip(tensors, parts, strict=True):
        if tensor.numel() > 0:
            # A clone, since a view of other bytes must start at a multiple of its element size.
            tensor.copy_(values.clone().view(tensor.dtype).view(tensor.shape))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)
