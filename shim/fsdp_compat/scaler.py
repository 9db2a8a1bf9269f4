"""``ShardedGradScaler``: torch's GradScaler with one opinion among all ranks."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .mesh import device_of_group


class ShardedGradScaler(GradScaler):
    """FSDP1's ShardedGradScaler: all ranks of ``process_group`` skip a step together.

    torch's GradScaler agrees on infinities in sharded gradients by itself; this one also covers gradients that FSDP2
    does not manage, which may overflow on one rank alone, and optimizers that hold both kinds.
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

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale and note infinities of any rank. A collective."""
        super().unscale_(optimizer)
        if not self._enabled or not dist.is_initialized():
            return
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        device = device_of_group(self.process_group)
        anywhere = torch.stack([value.to(device) for value in found.values()]).amax(0)
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=self.process_group)
        for value in found.values():
            value.copy_(anywhere)

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        # torch's own refuses an optimizer that holds sharded and unsharded gradients. Infinities of other ranks are
        # fetched in unscale_, so that this rank's own shards are all there is to look at.
        grads: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        found: dict[torch.device, torch.Tensor] = {found_inf.device: found_inf}
        for param in itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups):
            if param.grad is None:
                continue
            if param.grad.dtype == torch.float16 and not allow_fp16:
                raise ValueError("attempting to unscale fp16 gradients: keep the parameters in fp32")
            local = param.grad.to_local() if isinstance(param.grad, DTensor) else param.grad
            grads.setdefault((local.device, local.dtype), []).append(local)
            found.setdefault(local.device, found_inf.to(local.device, copy=True))
        for (device, _), tensors in grads.items():
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, found[device], inv_scale.to(device))
        return found
