"""FSDP1's ``forward_prefetch``: each unit gathers the next one early, in the order in which the units first ran."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from typing import Any, cast

from torch import nn
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.messages import log_once
from fsdp_compat.planning.records import record_of
from fsdp_compat.torch_.gathering import is_being_gathered
from fsdp_compat.torch_.param_groups import param_groups, prefetches_in_forward
from fsdp_compat.units import fsdp_modules


def prefetch_after_first_forward(root: nn.Module) -> None:
    """Record the order of the units in the first whole forward of ``root``; from the second on, prefetch in it.

    As in FSDP1 a unit prefetches the unit that ran after it, if it asked for it and the root did too; when ``root``
    lies inside another sharded module by then, that module decides. Results do not change, and neither do the
    collectives, which are only issued earlier; what is recomputed in the backward prefetches nothing.
    Differs from FSDP1 in that a unit which ran several times prefetches nothing, for it would gather the same unit
    each time; what ``set_modules_to_forward_prefetch`` was called with stays.
    """
    if not _asks(root):
        if any(map(_asks, root.modules())):
            log_once(
                "forward_prefetch=True on inner units has no effect, as in FSDP1: the enclosing unit does not set it"
            )
        return
    order: list[nn.Module] = []
    recorders: list[Any] = []

    def start(module: nn.Module, args: Any) -> None:
        record = record_of(root)
        if record is None or not record.is_root:
            starter.remove()
            return
        # A forward that raised leaves a part of an order behind.
        order[:] = [root] if param_groups(root) else []
        if not recorders:
            inner = [unit for unit in fsdp_modules(root) if unit is not root and param_groups(unit)]
            # After the gather of the unit, unlike what a program registers.
            recorders.extend(nn.Module.register_forward_pre_hook(unit, note) for unit in inner)
            recorders.append(root.register_forward_hook(finish))

    def note(module: nn.Module, args: Any) -> None:
        order.append(module)

    def finish(module: nn.Module, args: Any, output: Any) -> None:
        for handle in (starter, *recorders):
            handle.remove()
        chain = _chain_of(order)
        if chain:
            nn.Module.register_forward_pre_hook(root, functools.partial(_prefetch_in, chain), prepend=True)
            root.register_forward_hook(functools.partial(_prefetch_no_more, chain))

    starter = root.register_forward_pre_hook(start, prepend=True)


def _asks(module: nn.Module) -> bool:
    record = record_of(module)
    return record is not None and record.options.forward_prefetch


def _chain_of(order: list[nn.Module]) -> dict[nn.Module, FSDPModule]:
    """The unit that each one gathers early."""
    runs = Counter(order)
    return {
        unit: cast(FSDPModule, following)
        for unit, following in itertools.pairwise(dict.fromkeys(order))
        if _asks(unit) and runs[unit] == 1 and not prefetches_in_forward(unit)
    }


def _prefetch_in(chain: dict[nn.Module, FSDPModule], root: nn.Module, args: Any) -> None:
    for unit, following in chain.items():
        assert isinstance(unit, FSDPModule)
        unit.set_modules_to_forward_prefetch([following])


def _prefetch_no_more(chain: dict[nn.Module, FSDPModule], root: nn.Module, args: Any, output: Any) -> None:
    # What checkpoints recompute in the backward must not gather units whose backward is over.
    for unit, following in chain.items():
        assert isinstance(unit, FSDPModule)
        unit.set_modules_to_forward_prefetch([])
        # What was gathered in vain would be used as it is in a later forward, whatever has become of the shards then.
        if is_being_gathered(cast(nn.Module, following)):
            following.unshard()
            following.reshard()
