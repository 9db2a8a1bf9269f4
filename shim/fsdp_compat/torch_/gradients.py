"""Gradients inside FSDP2: their reduction turned off, what waits for it shown, what is unused reduced as zeros.

Reaches into FSDP2's private state, see :mod:`.param_groups`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.distributed.tensor import DTensor, Partial

from fsdp_compat.torch_.param_groups import param_groups
from fsdp_compat.torch_.versions import HAS_GRAD_DTYPE

_SHOWN = "_fsdp_compat_shown"


def all_reduce_with(module: nn.Module, all_reduce: Callable[[torch.Tensor], None]) -> None:
    """Make one unit whose parameters are not sharded leave its gradients, flat and whole, to ``all_reduce`` alone."""
    for group in param_groups(module):
        # Of two meshes FSDP2 keeps the one of a single rank, over which there is nothing to do, and calls its hook.
        shard = group.mesh_info
        group.mesh_info = FSDPMeshInfo(mesh=shard.mesh, shard_mesh_dim=shard.shard_mesh_dim)
        group._all_reduce_hook = all_reduce


def set_reduce_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Make one unit reduce its gradients in ``dtype`` from its next backward on."""
    for group in param_groups(module):
        # From 2.15 on each parameter has a policy of its own.
        for owner in (group, *group.fsdp_params):
            if hasattr(owner, "mp_policy"):
                owner.mp_policy = dataclasses.replace(owner.mp_policy, reduce_dtype=dtype)
        group._init_mp_dtypes()


@contextlib.contextmanager
def gradient_sync_off(units: Collection[nn.Module], kept: Collection[nn.Module] = ()) -> Iterator[None]:
    """No gradient communication for ``units`` inside; afterwards each has exactly the flags it had.

    Those in ``kept`` stay gathered after a backward inside, so that the next forward does not gather them again.
    """
    names = ("reduce_grads", "all_reduce_grads", "reshard_after_backward")
    groups = [(group, unit in kept) for unit in units for group in param_groups(unit)]
    flags = [(group, name, getattr(group, name)) for group, _ in groups for name in names]
    try:
        for group, stays_gathered in groups:
            group.reduce_grads = group.all_reduce_grads = False
            group.reshard_after_backward = group.reshard_after_backward and not stays_gathered
        yield
    finally:
        for group, name, value in flags:
            setattr(group, name, value)


def show_unreduced(module: nn.Module) -> None:
    """Make one unit show in ``.grad`` what it accumulates without reducing it, and heed what becomes of it there.

    As under FSDP1 that is in the dtype that was computed in, and no longer there once ``.grad`` was set to None.
    Not shown are gradients of tensor-parallel parameters and those that wait on another device than their parameters.
    """
    for group in param_groups(module):
        if not hasattr(group, _SHOWN):
            setattr(group, _SHOWN, True)
            group.pre_backward = functools.partial(_pre_backward_taking_back, group, group.pre_backward)
            group.post_backward = functools.partial(_post_backward_showing, group, group.post_backward)


def _pre_backward_taking_back(group: Any, pre_backward: Callable[..., None], *arguments: Any) -> None:
    for param in group.fsdp_params:
        # Else what waits is cast to the dtype of the reduction. The group has its own note of that.
        param.reduce_dtype = None
        _take_back(param)
    pre_backward(*arguments)


def _post_backward_showing(group: Any, post_backward: Callable[..., None], *arguments: Any) -> None:
    for param in group.fsdp_params:
        _take_back(param)
    post_backward(*arguments)
    if not group.reduce_grads:
        for param in group.fsdp_params:
            _show(param)


def _show(param: Any) -> None:
    waiting = param.unsharded_accumulated_grad
    if waiting is None:
        waiting = param._unsharded_param.grad if hasattr(param, "_unsharded_param") else None
    sharded = param.sharded_param
    if waiting is None or param.is_dtensor or waiting.device != sharded.device:
        return
    if waiting.dtype != sharded.dtype:
        if not HAS_GRAD_DTYPE:
            return
        sharded.grad_dtype = None
    mesh = sharded.device_mesh
    shown = DTensor.from_local(waiting, mesh, [Partial("avg")] * mesh.ndim, run_check=False)
    setattr(param, _SHOWN, (shown, sharded.grad))
    sharded.grad = shown


def reduced_gradient(param: Any) -> torch.Tensor | None:
    """The ``.grad`` of one of FSDP2's parameters, None where it only shows what is not reduced yet."""
    return None if hasattr(param, _SHOWN) else param.sharded_param.grad


def _take_back(param: Any) -> None:
    """Leave in ``.grad`` what it held before something was shown there, or what a user has put there instead."""
    if not hasattr(param, _SHOWN):
        return
    shown, before = getattr(param, _SHOWN)
    delattr(param, _SHOWN)
    if param.sharded_param.grad is shown:
        param.sharded_param.grad = before
        return
    # From 2.15 on what waits lies in the gathered parameter alone, and this is a view of it.
    if "unsharded_accumulated_grad" in vars(param):
        param.unsharded_accumulated_grad = None
    if hasattr(param, "_unsharded_param"):
        param._unsharded_param.grad = None


def reduce_again(module: nn.Module) -> None:
    """Make one unit that a single rank shards, as under NO_SHARD, accumulate before it reduces, as FSDP1 does there.

    FSDP1 adds to the gradient that was reduced before and reduces the sum; FSDP2 reduces what is new and adds then,
    which rounds in another way. Gradients of another dtype or device than the parameters are left to FSDP2.
    """
    for group in param_groups(module):
        if group.mesh_info.shard_mesh_size == 1:
            group.pre_backward = functools.partial(_pre_backward_taking_reduced, group, group.pre_backward)


def _pre_backward_taking_reduced(group: Any, pre_backward: Callable[..., None], *arguments: Any) -> None:
    pre_backward(*arguments)
    if torch.is_grad_enabled():
        return  # a backward that builds a graph reduces nothing
    for param in group.fsdp_params:
        reduced, full = param.sharded_param.grad, getattr(param, "_unsharded_param", None)
        if full is None or full.grad is not None or param.is_dtensor or not isinstance(reduced, DTensor):
            continue
        local = reduced.to_local()
        if (local.dtype, local.device) == (full.dtype, full.device) and full.requires_grad:
            full.grad, param.sharded_param.grad = local, None


def reduce_unused_as_zeros(module: nn.Module) -> None:
    """Make one unit reduce zeros for each parameter without a gradient on this rank, if another of its own has one.

    FSDP2 leaves such parameters out of the reduction, so ranks that use different ones add up what does not belong
    together.
    """
    for group in param_groups(module):
        group.post_backward = functools.partial(_post_backward_with_zeros, group, group.post_backward)


def _post_backward_with_zeros(group: Any, post_backward: Callable[..., None], *arguments: Any) -> None:
    if group.reduce_grads:
        used, unused = False, []
        for param in group.fsdp_params:
            if hasattr(param.sharded_param, "_in_backward_optimizers"):
                raise NotImplementedError(
                    f"{param._param_fqn} has an optimizer that steps in the backward, which FSDP2 skips. Step "
                    "in a hook instead: param.register_post_accumulate_grad_hook(...) after sharding."
                )
            full = getattr(param, "_unsharded_param", None)
            if full is None or not full.requires_grad:
                continue
            if full.grad is not None or param.unsharded_accumulated_grad is not None:
                used = True
            else:
                unused.append(full)
        for full in unused if used else ():
            full.grad = torch.zeros_like(full)
    post_backward(*arguments)


def unreduced_gradients(module: nn.Module) -> list[tuple[DTensor, torch.Tensor]]:
    """Gradients of one unit's sharded parameters that wait outside ``.grad`` for the end of an accumulation.

    In HSDP one tensor may hold those of the whole unit; it then comes with each of its parameters.
    """
    found: list[tuple[DTensor, torch.Tensor]] = []
    for group in param_groups(module):
        trained = [param for param in group.fsdp_params if param.sharded_param.requires_grad]
        found += [
            (param.sharded_param, param.unsharded_accumulated_grad)
            for param in trained
            if param.unsharded_accumulated_grad is not None
        ]
        if group._partial_reduce_output is not None:
            found += [(param.sharded_param, group._partial_reduce_output) for param in trained]
    return found
