"""Which collectives a block issues, FSDP1's and FSDP2's alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: The end of an operation's name in ``torch.ops.c10d``, by what it is here.
_KINDS = {"gathers": "allgather", "scatters": "reduce_scatter", "reductions": "allreduce"}


class Collectives(TorchDispatchMode):
    """``counts`` of gathers, scatters and reductions issued inside, and the ``elements`` that each kind gave."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.elements: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = str(func)
        if name.startswith("c10d."):
            for kind, part in _KINDS.items():
                if part in name:
                    self.counts[kind] += 1
                    self.elements[kind] += sum(tensor.numel() for tensor in _tensors(args[0]))
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)]
