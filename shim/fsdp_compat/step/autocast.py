"""``torch.autocast`` casts a unit's weights for each use, as under FSDP1.

It keeps the casts of leaf parameters up to the end of its outermost region. What FSDP1 computes with are views of a
flat parameter, which are not kept; FSDP2's are leaves, whose casts would outlive an optimizer step inside of a region,
and collect the gradients of several uses in low precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def cast_for_each_use(unit: nn.Module) -> None:
    """Turn the cache of ``torch.autocast`` off while ``unit`` runs its forward, and back to what it was afterwards."""
    before: list[bool] = []

    def turn_off(module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            before.append(torch.is_autocast_cache_enabled())
            torch.set_autocast_cache_enabled(False)

    def turn_back(module: nn.Module, args: Any, output: Any) -> None:
        if before and not torch.compiler.is_compiling():
            torch.set_autocast_cache_enabled(before.pop())

    unit.register_forward_pre_hook(turn_off, prepend=True)
    unit.register_forward_hook(turn_back, always_call=True)
