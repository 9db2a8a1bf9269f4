"""FSDP1's ``buffer_dtype``: floating-point buffers compute in it from the first forward, or the first state dict, on.

They are saved as they were, but for those of which no unit around them has parameters of its own. FSDP2 leaves buffers
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fsdp_compat.planning.records import record_of
from fsdp_compat.step.eval_precision import computes_in_full_precision
from fsdp_compat.torch_.param_groups import param_groups


@dataclass(frozen=True)
class _Buffer:
    module: nn.Module
    name: str
    original: torch.dtype
    computing: torch.dtype

    def cast(self, dtype: torch.dtype) -> None:
        buffer = getattr(self.module, self.name)
        if isinstance(buffer, torch.Tensor) and buffer.dtype != dtype:
            buffer.data = buffer.data.to(dtype)


def cast_buffers_when_computing(root: nn.Module) -> None:
    """Arrange the casts before forwards of ``root``, unless it lies inside another sharded module that takes over.

    In eval mode the buffers have their own dtypes again if ``FSDP_USE_FULL_PREC_IN_EVAL`` says so.
    """
    if not any(record.buffer_dtype for record in map(record_of, root.modules()) if record is not None):
        return
    buffers: list[_Buffer] | None = None
    was_full: bool | None = None

    def cast(module: nn.Module, *_: Any) -> None:
        nonlocal buffers, was_full
        record = record_of(module)
        if record is None or not record.is_root:
            for handle in handles:
                handle.remove()
            return
        if buffers is None:
            buffers = list(_buffers_to_cast(module))
            restored = _saved_as_they_were(module)
            for buffer in buffers:
                if buffer.module in restored:
                    _save_as(buffer.module, buffer.name, buffer.original)
        full = computes_in_full_precision(module)
        if full is not was_full:
            for buffer in buffers:
                buffer.cast(buffer.original if full else buffer.computing)
            was_full = full

    handles = [
        root.register_forward_pre_hook(cast, prepend=True),
        root.register_state_dict_pre_hook(cast),  # type: ignore[no-untyped-call]
    ]


def _buffers_to_cast(root: nn.Module) -> Iterator[_Buffer]:
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
                    yield _Buffer(module, name, buffer.dtype, record.buffer_dtype)


def _saved_as_they_were(root: nn.Module) -> set[nn.Module]:
    """The modules of whose buffers some unit with parameters takes care as it saves them."""
    units = {unit: record for unit in root.modules() if (record := record_of(unit)) is not None}
    return {
        module
        for unit, record in units.items()
        if record.buffer_dtype is not None and param_groups(unit)
        for module in unit.modules()
        if module not in record.ignored_modules
    }


def _save_as(module: nn.Module, name: str, dtype: torch.dtype) -> None:
    def restore(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        if prefix + name in state_dict:
            state_dict[prefix + name] = state_dict[prefix + name].to(dtype)

    module.register_state_dict_post_hook(restore)  # type: ignore[no-untyped-call]
