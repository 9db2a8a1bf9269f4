"""A link of known latency and bandwidth for collectives of gloo, which counts what passes it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from fsdp_migrate.tune.machine import Link

#: How often the whole tensor passes, by a part of the collective's name. FSDP1 gathers into a list on the CPU.
_SHARES = {"allgather": 1, "reduce_scatter": 1, "allreduce": 2}


class Delayed(TorchDispatchMode):
    """Collectives take as long as over a link: this sleeps for the rest after each, so that none hides another.

    ``seconds``: what they were made to take, less the processor's own; ``counts`` and ``moved``, bytes of whole
    tensors, by kind.
    """

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self.clear()

    def clear(self) -> None:
        """Count from zero."""
        self.seconds = 0.0
        self.counts: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = str(func)
        kind = next((part for part in _SHARES if name.startswith("c10d.") and part in name), None)
        if kind is None:
            return func(*args, **(kwargs or {}))
        began, busy = time.perf_counter(), time.process_time()
        result = func(*args, **(kwargs or {}))
        # The larger side is the whole tensor; the group is the first argument that is not a tensor.
        amount = max(map(_nbytes, args[:2]))
        ranks = next(dist.ProcessGroup.unbox(arg).size() for arg in args if isinstance(arg, torch.ScriptObject))
        wanted = self._link.latency + amount * _SHARES[kind] * (ranks - 1) / ranks / self._link.bandwidth
        time.sleep(max(0.0, began + wanted - time.perf_counter()))
        self.seconds += wanted - (time.process_time() - busy)
        self.counts[kind] += 1
        self.moved[kind] += amount
        return result


def _nbytes(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value))
    return value.nbytes if isinstance(value, torch.Tensor) else 0
