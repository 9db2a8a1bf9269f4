"""What FSDP1 does with gradients in methods: clip them by their global norm, and accumulate them unsynchronised."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from fsdp_compat.planning.options import KEEP_AFTER_FORWARD
from fsdp_compat.planning.records import check_root, record_of
from fsdp_compat.step.model_group import group_of_several
from fsdp_compat.torch_.gradients import gradient_sync_off, show_unreduced
from fsdp_compat.torch_.param_groups import keeps_after_forward, managed_parameters
from fsdp_compat.units import fsdp_modules


@torch.no_grad()
def clip_grad_norm_(module: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scale all gradients of ``module`` in place so that their global norm is at most ``max_norm``; returns the norm.

    The norm before clipping, as a plain 0-dim tensor: computed in fp32 at least and given in
    the widest dtype among the gradients; on the CPU if the gradients are there, else on the compute device.
    Sharded, replicated, ignored and unsharded parameters may be mixed. As in FSDP1 a gradient that FSDP does not
    manage counts as it is on each rank, so that norms may differ between ranks, or for ``inf`` as the greatest of all
    ranks. ``norm_type`` is positive, ``inf`` included. A collective: all ranks call it.

    Where units are sharded over different ranks, what each rank has of them is added up over the ranks of ``module``,
    as in FSDP1: a parameter that some of these ranks have twice counts twice.

    Agrees with FSDP1's method to about 1e-6 relative: the two add squares up in another order.
    Differs from FSDP1 around tensor parallelism, where FSDP1 leaves out the parts of the other tensor-parallel ranks.
    Raises ValueError for another ``norm_type``, RuntimeError for a module inside another FSDP2 module.
    """
    check_root(
        module, "`clip_grad_norm_()` should only be called on the root FSDP instance: call it on the whole model"
    )
    max_norm, norm_type = float(max_norm), float(norm_type)
    if not norm_type > 0:
        raise ValueError(f"norm_type must be positive (inf included), not {norm_type}")
    params = _parameters(module)
    total = _total_norm(params, norm_type, group_of_several(module))
    grads = [_local(param.grad) for param in params if param.grad is not None]
    if not grads:
        warnings.warn(
            f"Called FSDP.clip_grad_norm_() on rank {dist.get_rank()} with no gradients -- returning the total norm in "
            f"the default dtype {total.dtype}",
            stacklevel=2,
        )
        return total
    if all(grad.device.type == "cpu" for grad in grads):
        total = total.cpu()
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(factor.to(grad.device, grad.dtype))
    return total.to(functools.reduce(torch.promote_types, [grad.dtype for grad in grads]))


@contextlib.contextmanager
def no_sync(module: nn.Module) -> Iterator[None]:
    """Inside, backward accumulates gradients without communication; the next backward outside reduces their sum.

    Restores each unit's own flags on exit, so it nests. On a module without FSDP2 units that has its own
    ``no_sync`` (DDP) it is that one. Until that backward ``.grad`` is the sum of this rank, as a DTensor that is
    partial over the mesh and whose local part is the whole unreduced gradient, in the dtype that was computed in;
    ``zero_grad()`` drops it. Differs from FSDP1 in that ``zero_grad()`` also drops what was reduced before, and in that
    nothing is shown in ``.grad``, nor dropped, with CPU offload on an accelerator, for tensor-parallel parameters, and
    with another ``param_dtype`` before torch 2.10; and in that from torch 2.15 on it adds up in the dtype of the
    reduction, which FSDP2 chooses there, so that bf16 accumulation is more precise than FSDP1's and not equal to it.

    Raises RuntimeError for a module inside another FSDP2 module, TypeError for one that is not distributed.
    """
    check_root(
        module,
        "`no_sync()` on inner FSDP instances is not supported. Please call `no_sync()` on root FSDP module.",
    )
    units = fsdp_modules(module)
    if not units:
        own = getattr(module, "no_sync", None)
        if own is None:
            raise TypeError(f"no_sync needs a module sharded with FSDP2 or wrapped in DDP, not {type(module).__name__}")
        with own():
            yield
        return
    for unit in units:
        show_unreduced(unit)
    with gradient_sync_off(units, set(filter(_stays_gathered, units))):
        yield


def _stays_gathered(unit: nn.Module) -> bool:
    """Whether ``unit`` keeps its parameters until gradients are reduced, as FSDP1 has it for these strategies."""
    record = record_of(unit)
    return keeps_after_forward(unit) if record is None else record.options.strategy in KEEP_AFTER_FORWARD


def _parameters(module: nn.Module) -> list[torch.Tensor]:
    """What an optimizer of ``module`` holds, also while some units are gathered."""
    managed = [param for unit in fsdp_modules(module) for param in managed_parameters(unit)]
    sharded: dict[int, torch.Tensor] = {id(param.sharded): param.sharded for param in managed}
    temporary = {id(param.unsharded) for param in managed}
    others = [param for param in module.parameters() if id(param) not in sharded and id(param) not in temporary]
    return [*sharded.values(), *others]


def _local(grad: torch.Tensor) -> torch.Tensor:
    return grad.to_local() if isinstance(grad, DTensor) else grad


def _total_norm(params: list[torch.Tensor], norm_type: float, common: dist.ProcessGroup | None) -> torch.Tensor:
    """The norm over all ranks. ``common``: the group over which the shards of all meshes are added up."""
    # Grouped by parameter, not by gradient: a rank without gradients must still take part in each collective.
    dtype = functools.reduce(torch.promote_types, [param.dtype for param in params], torch.float32)
    layouts: dict[tuple[DeviceMesh, tuple[int, ...]], list[torch.Tensor]] = {}
    plain: list[torch.Tensor] = []
    for param in params:
        if isinstance(param, DTensor):
            dims = tuple(dim for dim, placement in enumerate(param.placements) if not placement.is_replicate())
            local = layouts.setdefault((param.device_mesh, dims), [])
        else:
            local = plain
        if param.grad is not None:
            local.append(_local(param.grad))
    across = [key for key in layouts if any(key[0].size(dim) > 1 for dim in key[1])]
    if math.isinf(norm_type) and across:
        # FSDP1 takes the maximum over the ranks of these gradients too, where for other norms each rank adds its own.
        layouts[across[0]].extend(plain)
        plain = []
    powers = []
    if common is not None and across:
        shards = [grad for key in across for grad in layouts.pop(key)]
        powers.append(_power(shards, norm_type, dtype, torch.device(across[0][0].device_type)))
        dist.all_reduce(powers[0], op=_joined_by(norm_type), group=common)
    powers += [_reduced_power(grads, norm_type, dtype, mesh, dims) for (mesh, dims), grads in layouts.items()]
    if plain or not powers:
        powers.append(_power(plain, norm_type, dtype, plain[0].device if plain else torch.device("cpu")))
    stacked = torch.stack([power.to(powers[0].device) for power in powers])
    return stacked.amax() if math.isinf(norm_type) else stacked.sum() ** (1.0 / norm_type)


def _reduced_power(
    grads: list[torch.Tensor], norm_type: float, dtype: torch.dtype, mesh: DeviceMesh, shard_dims: tuple[int, ...]
) -> torch.Tensor:
    # On the mesh's device also where the gradients are offloaded: its backend need not serve CPU tensors.
    power = _power(grads, norm_type, dtype, torch.device(mesh.device_type))
    for dim in shard_dims:
        if mesh.size(dim) > 1:
            dist.all_reduce(power, op=_joined_by(norm_type), group=mesh.get_group(dim))
    return power


def _joined_by(norm_type: float) -> dist.ReduceOp.RedOpType:
    return dist.ReduceOp.MAX if math.isinf(norm_type) else dist.ReduceOp.SUM


def _power(grads: list[torch.Tensor], norm_type: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The norm to the power of its type (for ``inf`` the norm itself): what adds up across ranks."""
    norms = [torch.linalg.vector_norm(grad, norm_type, dtype=dtype).to(device) for grad in grads if grad.numel() > 0]
    if not norms:
        return torch.zeros((), dtype=dtype, device=device)
    norm = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return norm if math.isinf(norm_type) else torch.pow(norm, norm_type)
