"""Units whose forward begins before that of the root around them: FSDP1 makes roots of them, which cast their inputs.

So it is with ``model.encode(x)``, a method that calls the units itself, where nothing has called the model before.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from fsdp_compat.torch_.param_groups import has_begun, set_input_cast


def cast_where_forwards_begin(root: nn.Module, units: Collection[nn.Module]) -> None:
    """Let those of ``units`` cast that begin first, until a forward or a state dict of ``root`` says what is inside."""

    def begin(unit: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and not has_begun(unit):
            set_input_cast(unit, True)

    def settle(*_: Any) -> None:
        for handle in handles:
            handle.remove()

    handles = [unit.register_forward_pre_hook(begin, prepend=True) for unit in units]
    if handles:
        root.register_state_dict_pre_hook(settle)  # type: ignore[no-untyped-call]
        root.register_load_state_dict_pre_hook(settle)  # type: ignore[no-untyped-call]
