"""Optimizers whose groups hold sharded and ordinary parameters, as with ignored ones.

The kernels that torch runs on many tensors at once take either kind, not both. FSDP1's shards were ordinary tensors.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdp_compat.messages import logger

_MANY_AT_ONCE = ("foreach", "fused")

_left_open: WeakKeyDictionary[Optimizer, list[tuple[dict[str, Any], str]]] = WeakKeyDictionary()


def step_one_by_one_where_mixed(optimizer: Optimizer) -> None:
    """Turn ``foreach`` and ``fused`` off in the groups that hold both kinds of parameters; logged where it matters."""
    for index, group in enumerate(optimizer.param_groups):
        chosen = [name for name in _MANY_AT_ONCE if group.get(name, False) is not False]
        if not chosen or len({isinstance(param, DTensor) for param in group["params"]}) < 2:
            continue
        for name in chosen:
            if group[name]:
                logger.warning(
                    "group %d of this %s has both sharded and ordinary parameters, which no %s kernel "
                    "supports: %s=True has no effect. To keep it, put them into separate groups.",
                    index,
                    type(optimizer).__name__,
                    name,
                    name,
                )
            else:
                _left_open.setdefault(optimizer, []).append((group, name))
            group[name] = False
        if not any(group.get("fused") for group in optimizer.param_groups):
            # Set where torch built the optimizer with fused=True, and read by its GradScaler.
            optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]


def leave_open_again(optimizer: Optimizer) -> None:
    """After a step: what the groups left to torch is left to it again, so that their saved state says so too."""
    for group, name in _left_open.pop(optimizer, ()):
        group[name] = None
