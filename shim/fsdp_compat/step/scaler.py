"""``ShardedGradScaler``: torch's GradScaler with one opinion among all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdp_compat.planning.mesh import device_of_group


class ShardedGradScaler(GradScaler):
    """FSDP1's ShardedGradScaler: all ranks of ``process_group`` skip a step together, and the scale stays the same.

    torch's GradScaler agrees on infinities in sharded gradients by itself; this one also covers gradients that FSDP2
    does not manage, which may overflow on one rank alone, optimizers that hold both kinds, and fp16 gradients.
    Differs from FSDP1's in that fused optimizers, which unscale by themselves, skip together too.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self.process_group = process_group

    def scale(self, outputs: Any) -> Any:
        """Multiply a tensor, or all tensors in an iterable, by the scale. Each keeps its dtype, fp16 included."""
        if isinstance(outputs, torch.Tensor):
            return super().scale(outputs).to(outputs.dtype)
        if isinstance(outputs, list | tuple):
            return type(outputs)(map(self.scale, outputs))
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        return super().scale(outputs)

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool = True
    ) -> dict[torch.device, torch.Tensor]:
        # torch's own refuses fp16 gradients, which FSDP1's unscales whatever allow_fp16 says, and an optimizer that
        # holds sharded and unsharded gradients. This rank's own shards are all there is to look at, as every rank
        # tells the others what it found. Both unscale_() and step() of a fused optimizer end up here.
        grads: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        found: dict[torch.device, torch.Tensor] = {found_inf.device: found_inf}
        for param in itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups):
            if param.grad is not None:
                values = _values(param)
                grads.setdefault((values.device, values.dtype), []).append(values)
                found.setdefault(values.device, found_inf.to(values.device, copy=True))
        for (device, _), tensors in grads.items():
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, found[device], inv_scale.to(device))
        if dist.is_initialized():
            self._agree(list(found.values()))
        return found

    def _agree(self, found: list[torch.Tensor]) -> None:
        device = device_of_group(self.process_group)
        anywhere = torch.stack([value.to(device) for value in found]).amax(0)
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=self.process_group)
        for value in found:
            value.copy_(anywhere)


@torch.no_grad()
def _values(param: torch.Tensor) -> torch.Tensor:
    """What of ``param.grad`` can be unscaled in place on this rank."""
    assert param.grad is not None
    if isinstance(param.grad, DTensor):
        return param.grad.to_local()
    if not param.grad.is_sparse:
        return param.grad
    if param.grad.dtype is torch.float16:
        # An fp16 sum of entries of one place may overflow, and is not implemented; the sum in fp32 shows it.
        param.grad = param.grad.to(torch.float32).coalesce().to(torch.float16)
    return param.grad._values()
