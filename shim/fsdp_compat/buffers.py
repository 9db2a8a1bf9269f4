"""FSDP1's ``buffer_dtype``: floating-point buffers compute in it from the first forward on, and are saved as they were.

FSDP2 leaves buffers alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .records import record_of


def cast_buffers_at_first_forward(root: nn.Module) -> None:
    """Arrange the cast, once, unless by then ``root`` lies inside another sharded module that has taken it over."""
    if not any(record.buffer_dtype for record in map(record_of, root.modules()) if record is not None):
        return

    def cast(module: nn.Module, args: Any) -> None:
        handle.remove()
        record = record_of(module)
        if record is not None and record.is_root:
            _cast_buffers(module)

    handle = root.register_forward_pre_hook(cast, prepend=True)


def _cast_buffers(root: nn.Module) -> None:
    seen: set[torch.Tensor] = set()
    # Inner units come last in modules(), and the innermost unit around a buffer decides its dtype.
    for unit in reversed([module for module in root.modules() if record_of(module) is not None]):
        record = record_of(unit)
        assert record is not None
        for module in unit.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer in seen:
                    continue
                seen.add(buffer)
                if module in record.ignored_modules or not buffer.is_floating_point():
                    continue
                if record.buffer_dtype is not None and buffer.dtype != record.buffer_dtype:
                    _save_as(module, name, buffer.dtype)
                    buffer.data = buffer.data.to(record.buffer_dtype)


def _save_as(module: nn.Module, name: str, dtype: torch.dtype) -> None:
    def restore(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        if prefix + name in state_dict:
            state_dict[prefix + name] = state_dict[prefix + name].to(dtype)

    module.register_state_dict_post_hook(restore)  # type: ignore[no-untyped-call]
