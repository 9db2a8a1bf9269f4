"""Do all ranks gather the same units in the same order? Asked where ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, as in FSDP1.

A unit that runs on some ranks only makes collectives meet that do not belong together: a hang, or wrong numbers where
the shapes are equal. To notice it ranks must talk, which is too dear for every forward of every model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fsdp_compat.messages import warn_caller
from fsdp_compat.planning.records import process_group, record_of
from fsdp_compat.torch_.param_groups import is_running, param_groups
from fsdp_compat.units import fsdp_modules


def check_forward_order(root: nn.Module) -> None:
    """Compare the order of the units of ``root`` across ranks in its first training forward, with one all-gather each.

    The forward then raises RuntimeError, naming the units, where ranks differ. From the second forward on each rank
    compares with its own first one, and warns once. Does nothing below the debug level DETAIL.
    """
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:  # type: ignore[attr-defined]
        names = {module: name for name, module in root.named_modules()}
        units = [unit for unit in fsdp_modules(root) if param_groups(unit)]
        watcher = _Watcher(root, units, [names[unit] or "the root" for unit in units])
        for unit in units:
            unit.register_forward_pre_hook(watcher.note, prepend=True)
        root.register_forward_pre_hook(watcher.start, prepend=True)


class _Watcher:
    def __init__(self, root: nn.Module, units: Sequence[nn.Module], names: Sequence[str]) -> None:
        self._root = root
        self._indices = {unit: index for index, unit in enumerate(units)}
        self._names = names
        self._first: list[int] = []
        self._position: int | None = None
        self._has_warned = False

    def start(self, module: nn.Module, args: Any) -> None:
        if self._first and self._counts(module):
            self._position = 0

    def note(self, module: nn.Module, args: Any) -> None:
        if not self._counts(module):
            return
        index = self._indices[module]
        if self._position is None:
            self._compare_ranks(index)
            self._first.append(index)
            return
        expected = self._first[self._position] if self._position < len(self._first) else None
        self._position += 1
        if index != expected and not self._has_warned:
            self._has_warned = True
            instead = "nothing" if expected is None else self._names[expected]
            warn_caller(
                f"Forward order differs from that of the first iteration on rank {dist.get_rank()}. Collectives are "
                "unchecked and may give incorrect results or hang, unless all ranks do the same: "
                f"{self._names[index]} runs instead of {instead}."
            )

    def _counts(self, module: nn.Module) -> bool:
        """Not in evaluation, not when checkpointing recomputes, and not once another root lies around this one."""
        record = record_of(self._root)
        return record is not None and record.is_root and module.training and not is_running(module)

    def _compare_ranks(self, index: int) -> None:
        record = record_of(self._root)
        assert record is not None
        group = process_group(record)
        all_indices = torch.empty(dist.get_world_size(group), dtype=torch.int32, device=record.device)
        own = torch.tensor([index], dtype=torch.int32, device=record.device)
        dist.all_gather_into_tensor(all_indices, own, group=group)
        others: list[int] = all_indices.tolist()
        for rank, other in enumerate(others):
            if other != others[0]:
                raise RuntimeError(
                    "Forward order differs across ranks: rank 0 is all-gathering parameters for "
                    f"{self._names[others[0]]} while rank {rank} is all-gathering parameters for "
                    f"{self._names[other]}. Run every unit on every rank, with its output multiplied by 0 where you "
                    f"do not need it, or put modules that only some ranks run into a unit that all ranks run."
                )
