"""What ``fully_shard`` needs on the CPU and what torch 2.6 and 2.7 do not have yet, put in its place there.

Touches private names of torch, as only its neighbours do besides; those of two versions that no longer change.
Nothing here runs on a newer torch, or for an accelerator.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
import torch.distributed as dist

from fsdp_compat.torch_.versions import GATHER_KEEPS_VERSIONS

_OURS = "_fsdp_compat_backport"


def make_cpu_work() -> None:
    """Let FSDP2 run on the CPU: in torch 2.6 its first forward fails, in 2.7 the first all-reduce of gradients."""
    stream: Any = torch.cpu.Stream
    stream.record_event = _record_event
    stream.wait_event = _wait_event
    if not GATHER_KEEPS_VERSIONS:
        _keep_versions_when_gathering()


def _record_event(stream: torch.cpu.Stream) -> torch.cpu.Event:
    return torch.cpu.Event()


def _wait_event(stream: torch.cpu.Stream, event: torch.cpu.Event) -> None:
    return None


def _keep_versions_when_gathering() -> None:
    """Refilling parameters for the backward must not look to autograd as if they had been changed since the forward.

    FSDP2 hides it from autograd itself since 2.7; before, only the kernels of accelerators did.
    """
    param_group: Any = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_param_group")
    original = param_group.foreach_all_gather_copy_out
    if hasattr(original, _OURS):
        return

    @functools.wraps(original)
    def copy_out(result: Any, fsdp_params: Any, *more: Any) -> None:
        outputs = [output for param in fsdp_params for output in getattr(param, "all_gather_outputs", ())]
        versions = [(output, output._version) for output in outputs if output.is_cpu and not output.is_inference()]
        original(result, fsdp_params, *more)
        for output, version in versions:
            torch._C._autograd._unsafe_set_version_counter(output, version)

    setattr(copy_out, _OURS, True)
    param_group.foreach_all_gather_copy_out = copy_out


def divide_around_sums() -> None:
    """Let FSDP2 reduce gradients over gloo as it reduces fp16 ones: divide, sum, divide, by FSDP1's factors.

    It asks for averages otherwise, which gloo refuses (all-reduce) or takes for sums (reduce-scatter).
    """
    collectives: Any = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    original = collectives._get_gradient_divide_factors
    if hasattr(original, _OURS):
        return

    @functools.wraps(original)
    def factors(
        reduce_scatter_group: Any, all_reduce_group: Any, reduce_dtype: torch.dtype, *more: Any, **named: Any
    ) -> Any:
        if dist.get_backend(reduce_scatter_group) != "nccl":
            reduce_dtype = torch.float16
        return original(reduce_scatter_group, all_reduce_group, reduce_dtype, *more, **named)

    setattr(factors, _OURS, True)
    collectives._get_gradient_divide_factors = factors
