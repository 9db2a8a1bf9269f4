"""``keep_low_precision_grads``: gradients come out of backward in the dtype that was computed in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fsdp_compat.planning.mixed_precision import Precision
from fsdp_compat.torch_.param_groups import managed_parameters, param_groups, reduction_groups


def keep_low_precision_grads(unit: nn.Module, precision: Precision) -> None:
    """From the first forward on, cast each reduced gradient of ``unit`` to what FSDP1 leaves it in.

    That is ``param_dtype``, and with NO_SHARD the dtype of the reduction. Gradients of further backwards are added in
    full precision and cast again.
    """
    if not param_groups(unit):
        return
    is_replicated = reduction_groups(unit).is_replicated
    dtype = precision.policy.reduce_dtype if is_replicated else precision.policy.param_dtype
    if dtype is None:
        return

    def cast(param: torch.Tensor) -> None:
        assert param.grad is not None
        if param.grad.device.type == "cpu" and torch.accelerator.is_available():
            # It may still be on its way from the device where it was reduced.
            torch.accelerator.current_stream().synchronize()
        param.grad = param.grad.to(dtype)

    def prepare(module: nn.Module, args: Any) -> None:
        # In each forward, since moving the model to a device exchanges its parameters.
        for managed in managed_parameters(module):
            param = managed.sharded
            if param.requires_grad and param.is_floating_point() and param.grad_dtype is not None:
                param.grad_dtype = None
                param.register_post_accumulate_grad_hook(cast)  # type: ignore[no-untyped-call]

    unit.register_forward_pre_hook(prepare, prepend=True)
