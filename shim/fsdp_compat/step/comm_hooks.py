"""``register_comm_hook``: FSDP1's communication hooks on FSDP2's reduction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.planning.records import is_root
from fsdp_compat.torch_.gradients import all_reduce_with, set_reduce_dtype
from fsdp_compat.torch_.param_groups import param_groups, reduction_groups
from fsdp_compat.torch_.versions import HAS_CUSTOM_REDUCE_SCATTER, TORCH
from fsdp_compat.units import fsdp_modules

Hook = Callable[..., Any]

_COMPRESSED: dict[Hook, torch.dtype] = {
    default_hooks.fp16_compress_hook: torch.float16,
    default_hooks.bf16_compress_hook: torch.bfloat16,
}
_FACTORS = ("gradient_predivide_factor", "gradient_postdivide_factor")


def register_comm_hook(module: nn.Module, state: object, hook: Hook) -> None:
    """Have ``hook(state, grad, output)`` reduce the gradients of every unit of ``module``, the root, after this call.

    ``grad`` is a unit's whole gradient of this rank, flat, padded and in the reduce dtype; the hook leaves in
    ``output`` what belongs to this rank: the sum over the ranks of ``grad.chunk(world_size)[rank]``, divided as it
    sees fit, since nothing else divides. With NO_SHARD, and on a single rank, it is ``hook(state, grad)``, which
    changes ``grad`` in place. FSDP1's own hooks (``torch.distributed.algorithms._comm_hooks``) are not
    called: ``reduce_scatter_hook`` and ``allreduce_hook`` are what happens without a hook, the compressing ones set
    the reduce dtype.

    Differs from FSDP1 in the order of the elements in ``grad`` of sharded units: all that belongs to rank 0 of each
    parameter, then all of rank 1, where FSDP1 puts parameter after parameter; and in that gradients come out in the
    parameters' dtype, whatever ``LowPrecisionState.parameter_type`` says.

    Raises AssertionError for a module inside another sharded one, for hybrid strategies, and if there is a hook
    already; ValueError if ``hook`` cannot be called; NotImplementedError for hooks of other makes before torch 2.9.
    Changes nothing in these cases.
    """
    if not is_root(module):
        raise AssertionError("register_comm_hook can only be called on a root instance.")
    units = [unit for unit in fsdp_modules(module) if param_groups(unit)]
    for unit in units:
        if reduction_groups(unit).is_hybrid:
            raise AssertionError(
                "Communication hook is not supported for hybrid strategies: FSDP1 refused it there, too. For a "
                "compressed reduction set MixedPrecision(reduce_dtype=...)."
            )
        if getattr(unit, "_comm_hook", None) is not None:
            raise AssertionError("A communication hook is already registered")
    if not callable(hook):
        raise ValueError(f"The communication hook must be callable but got {hook}")
    own = [unit for unit in units if not _does_as_fsdp2(unit, state, hook)]
    _check_callable_by_fsdp2(own, hook)
    for unit in units:
        if unit in own:
            _reduce_with(unit, state, hook)
        elif hook in _COMPRESSED:
            set_reduce_dtype(unit, _COMPRESSED[hook])
    for unit in fsdp_modules(module):
        unit._comm_hook = hook  # type: ignore[assignment]
        unit._comm_hook_state = state  # type: ignore[assignment]


def _does_as_fsdp2(unit: nn.Module, state: object, hook: Hook) -> bool:
    """Whether ``hook`` is one of FSDP1's that FSDP2 replaces, with the group and the factors that FSDP2 uses."""
    groups = reduction_groups(unit)
    plain = default_hooks.allreduce_hook if groups.is_replicated else default_hooks.reduce_scatter_hook
    if hook is not plain and hook not in _COMPRESSED:
        return False
    if not isinstance(state, default_hooks.DefaultState):
        return False
    usual = default_hooks.DefaultState(groups.reduced_over)
    return _ranks(state.process_group) == _ranks(groups.reduced_over) and all(
        getattr(state, factor) == getattr(usual, factor) for factor in _FACTORS
    )


def _ranks(group: dist.ProcessGroup) -> list[int]:
    return dist.get_process_group_ranks(group)


def _check_callable_by_fsdp2(units: Sequence[nn.Module], hook: Hook) -> None:
    if not units:
        return
    name = getattr(hook, "__name__", repr(hook))
    advice = (
        "Use fp16_compress_hook or bf16_compress_hook of torch.distributed.algorithms._comm_hooks.default_hooks with "
        "a LowPrecisionState of the group that the model is sharded over, or MixedPrecision(reduce_dtype=...)."
    )
    if not HAS_CUSTOM_REDUCE_SCATTER:
        raise NotImplementedError(
            f"FSDP2 can call {name} since torch 2.9 (set_custom_reduce_scatter); this is {TORCH}. {advice}"
        )


def _reduce_with(unit: nn.Module, state: object, hook: Hook) -> None:
    assert isinstance(unit, FSDPModule)
    if reduction_groups(unit).is_replicated:
        all_reduce_with(unit, functools.partial(hook, state))
    else:
        unit.set_custom_reduce_scatter(_HookedReduceScatter(state, hook))  # type: ignore[arg-type]
    # Together they keep FSDP2 from dividing in whatever dtype: FSDP1 leaves that to the hook.
    unit.set_force_sum_reduction_for_comms(True)
    unit.set_gradient_divide_factor(1.0)


class _HookedReduceScatter:
    """FSDP2's interface for a reduce-scatter, carried out by one of FSDP1's hooks."""

    def __init__(self, state: object, hook: Hook) -> None:
        self._state = state
        self._hook = hook

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self._hook(self._state, input_tensor, output_tensor)
