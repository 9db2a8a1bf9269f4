"""``summon_full_params``: whole parameters in full precision inside a block, written back to the shards after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fsdp_compat.planning.records import record_of
from fsdp_compat.torch_.gathering import left_alone, prepare
from fsdp_compat.torch_.param_groups import ManagedParameter, is_running, managed_parameters, reduction_groups
from fsdp_compat.torch_.registered import kept_gathered
from fsdp_compat.torch_.tensors import copy_into, gathered_copy, holds_first_shard
from fsdp_compat.units import Place, fsdp_modules

_summoned: set[int] = set()


@dataclass(frozen=True)
class _Summoned:
    managed: ManagedParameter
    full: nn.Parameter


@contextlib.contextmanager
def summon_full_params(
    module: nn.Module,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """Inside, ``module``'s parameters are plain, whole and in full precision, under the same names.

    ``recurse=False`` touches only what ``module``'s own unit manages; a forward inside then works, the other units
    gather theirs as usual. With ``writeback`` in-place changes are copied into the shards on exit, also when the
    block raises; the sharded parameters stay the same objects, so optimizers stay valid. With ``rank0_only`` the
    other ranks keep their shards. ``with_grads`` gives ``.grad`` as a whole too, and writes it back.
    Tensor-parallel parameters are gathered over the data-parallel ranks: inside they are the DTensors over the
    tensor-parallel mesh that they were before FSDP, as in FSDP1.
    A module without FSDP2 units is left alone. A collective: all ranks enter it.

    As in FSDP1 changes under NO_SHARD stay with ``writeback=False`` too, unless parameters are offloaded.
    Differs from FSDP1 in that ``offload_to_cpu`` works with NO_SHARD.

    Raises NotImplementedError for ``writeback`` with ``rank0_only`` and for ``with_grads`` with ``offload_to_cpu``,
    AssertionError inside a forward, a backward or another ``summon_full_params`` of the same unit (all as FSDP1);
    RuntimeError if a parameter was exchanged inside for another shape, or if a backward ran inside without
    ``with_grads``.
    """
    if writeback and rank0_only:
        raise NotImplementedError(
            "writeback=True and rank0_only=True is not supported: the other ranks have nothing to write back. Pass "
            "writeback=False to read on rank 0, or rank0_only=False to write on all ranks."
        )
    if with_grads and offload_to_cpu:
        raise NotImplementedError(
            "with_grads=True and offload_to_cpu=True is not supported: gradients are kept on the device of "
            "their parameters"
        )
    if recurse:
        units = fsdp_modules(module)
    else:
        units = [module] if isinstance(module, FSDPModule) else []
    for unit in units:
        _check_idle(unit)
    with contextlib.ExitStack() as stack:
        for unit in units:
            kept = stack.enter_context(kept_gathered(unit)) if record_of(unit) is not None else {}
            stack.enter_context(_summon(unit, kept, writeback, rank0_only, offload_to_cpu, with_grads))
        yield


def is_summoned(unit: nn.Module) -> bool:
    """Whether this is called inside a ``summon_full_params`` of ``unit``."""
    return id(unit) in _summoned


def _check_idle(unit: nn.Module) -> None:
    if is_summoned(unit):
        state = "when already unsharding parameters"
    elif is_running(unit):
        state = "during forward/backward"
    else:
        return
    raise AssertionError(
        f"Cannot manually unshard parameters {state}: summon_full_params was called for a {type(unit).__name__} in "
        f"this state. Call it before or after."
    )


@contextlib.contextmanager
def _summon(
    unit: nn.Module,
    kept: dict[int, torch.Tensor],
    writeback: bool,
    rank0_only: bool,
    offload_to_cpu: bool,
    with_grads: bool,
) -> Iterator[None]:
    assert isinstance(unit, FSDPModule)
    prepare(unit)
    unit.reshard()
    gathered = [_gather(managed, kept, rank0_only, offload_to_cpu, with_grads) for managed in managed_parameters(unit)]
    summoned = [one for one in gathered if one is not None]
    # FSDP1 has the parameter itself there, so that changes need no writing back, unless it was offloaded.
    is_whole = bool(summoned) and reduction_groups(unit).is_replicated
    is_whole = is_whole and all(one.managed.sharded.device == one.full.device for one in summoned)
    for one in summoned:
        _register(one.managed.places, one.full)
    _summoned.add(id(unit))
    try:
        with left_alone(unit) if summoned else contextlib.nullcontext():
            yield
    finally:
        _summoned.discard(id(unit))
        try:
            for one in summoned:
                if writeback:
                    written = _write_back(one, with_grads)
                    kept.update({key: written for key in (id(one.managed.sharded),) if key in kept})
                elif is_whole and not offload_to_cpu:
                    copy_into(one.managed.sharded, one.full.detach(), one.managed.data_dimensions)
                    if with_grads and one.full.grad is not None:
                        _write_back_grad(one.managed.sharded, one.full.grad, one.managed.data_dimensions)
        finally:
            record = record_of(unit)
            for one in summoned:
                # FSDP1 without use_orig_params shows other parameters in the block than it trains.
                if record is None or record.options.use_orig_params:
                    _keep_requires_grad(one)
                _register(one.managed.places, one.managed.sharded)


def _gather(
    managed: ManagedParameter, kept: dict[int, torch.Tensor], rank0_only: bool, offload_to_cpu: bool, with_grads: bool
) -> _Summoned | None:
    sharded, dimensions = managed.sharded, managed.data_dimensions
    whole = kept[id(sharded)] if id(sharded) in kept else gathered_copy(sharded, dimensions)
    grad = gathered_copy(sharded.grad, dimensions) if with_grads and isinstance(sharded.grad, DTensor) else None
    if rank0_only and not holds_first_shard(sharded, dimensions):
        return None
    full = nn.Parameter(whole.cpu() if offload_to_cpu else whole, requires_grad=sharded.requires_grad)
    full.grad = grad
    return _Summoned(managed, full)


def _register(places: tuple[Place, ...], param: nn.Parameter | DTensor) -> None:
    for owner, name in places:
        owner._parameters[name] = param  # type: ignore[assignment]


def _keep_requires_grad(one: _Summoned) -> None:
    """Let the shards have the flag that the block set: FSDP1 has one parameter for both."""
    owner, name = one.managed.places[0]
    current = owner._parameters.get(name)
    if current is not None and current.requires_grad != one.managed.sharded.requires_grad:
        one.managed.sharded.requires_grad_(current.requires_grad)


def _write_back(one: _Summoned, with_grads: bool) -> torch.Tensor:
    owner, name = one.managed.places[0]
    current, sharded = owner._parameters.get(name), one.managed.sharded
    if current is None or current.shape != sharded.shape:
        found = "nothing" if current is None else f"one of shape {tuple(current.shape)}"
        raise RuntimeError(
            f"summon_full_params cannot write back {type(owner).__name__}.{name}: the parameter had the shape "
            f"{tuple(sharded.shape)} and now has {found}. Change it in place instead."
        )
    copy_into(sharded, current.detach(), one.managed.data_dimensions)
    if with_grads:
        _write_back_grad(sharded, current.grad, one.managed.data_dimensions)
    elif current.grad is not None:
        raise RuntimeError(
            f"a backward ran inside summon_full_params and its gradient of {type(owner).__name__}.{name} would be "
            "lost. Run backward outside it."
        )
    return current.detach()


def _write_back_grad(sharded: DTensor, grad: torch.Tensor | None, data_dimensions: int) -> None:
    if grad is None:
        sharded.grad = None
        return
    if sharded.grad is None:
        sharded.grad = torch.zeros_like(sharded)
    assert isinstance(sharded.grad, DTensor)
    copy_into(sharded.grad, grad, data_dimensions)
