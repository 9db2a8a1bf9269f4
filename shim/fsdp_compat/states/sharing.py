"""The tensors that an optimizer and a state of it have in common under FSDP1, where one changes with the other.

With ``use_orig_params=True`` FSDP1 gives the optimizer the very counters of steps that it is given, for those
parameters that its part of a flat parameter reaches: what is loaded a second time, or saved, has the later steps. Of
parameters that it does not shard (NO_SHARD, and any strategy on one rank) it gives all tensors, and it saves those of
the optimizer; without ``use_orig_params`` it only saves them, and copies counters.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakTensorKeyDictionary

from fsdp_compat.planning.flat_layout import flat_layout
from fsdp_compat.planning.records import UnitRecord, record_of
from fsdp_compat.torch_.param_groups import ManagedParameter, managed_parameters
from fsdp_compat.units import fsdp_modules

#: What was loaded of a counter that FSDP1 does not have on this rank: it counts on, and the counter does not.
_counting: MutableMapping[torch.Tensor, torch.Tensor] = WeakTensorKeyDictionary()


class Sharing:
    """Of the units of ``model``; ``is_sent`` says whether one rank has the state and sends it to the others."""

    def __init__(self, model: nn.Module, *, is_sent: bool = False) -> None:
        self._is_sent = is_sent
        self._managed: set[int] = set()
        self._own: set[int] = set()
        self._whole: set[int] = set()
        for unit in fsdp_modules(model):
            record, managed = record_of(unit), managed_parameters(unit)
            if record is None or not managed:
                continue
            mesh, dimensions = managed[0].sharded.device_mesh, managed[0].data_dimensions
            # Not around tensor parallelism, which FSDP1 does not have on one rank to shard over.
            if mesh.ndim == dimensions and mesh.size(dimensions - 1) == 1:
                self._whole |= {id(one.sharded) for one in managed}
            if record.options.use_orig_params:
                self._managed |= {id(one.sharded) for one in managed}
                places = [(id(module), name) for module in unit.modules() for name in module._parameters]
                order = {place: number for number, place in enumerate(places)}
                managed.sort(key=lambda one: min(order[id(module), name] for module, name in one.places))
                self._own |= _in_shard(managed, record)

    def saved(
        self, value: torch.Tensor, param: torch.Tensor, *, full: bool, offload_to_cpu: bool
    ) -> torch.Tensor | None:
        """The optimizer's own ``value`` where a state gets that, else None."""
        if id(param) not in self._whole:
            return None
        own = (value.to_local() if full and isinstance(value, DTensor) else value).detach()
        if id(param) in self._managed:
            # As FSDP1, which does not offload it.
            return own
        if not full or not value.dim():
            return None
        return own.cpu() if offload_to_cpu else own

    def loads(self, param: torch.Tensor) -> bool:
        """Whether the optimizer gets what it is given for ``param``."""
        return id(param) in self._whole and id(param) in self._managed

    def counter(self, given: torch.Tensor, value: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
        """What the optimizer gets for the counter ``given``, whose value is ``value`` here."""
        if id(param) in self._own:
            return value
        if self._is_sent or id(param) not in self._managed:
            return value.clone()
        return _counting.setdefault(given, value.clone())


def _in_shard(managed: list[ManagedParameter], record: UnitRecord) -> set[int]:
    """The identities of those sharded parameters of a unit that FSDP1 has on this rank."""
    mesh, dimension = managed[0].sharded.device_mesh, managed[0].data_dimensions - 1
    numels = [one.sharded.numel() for one in managed]
    places, size = flat_layout(numels, managed[0].sharded.dtype, record.options, mesh.size(dimension))
    begin = mesh.get_local_rank(dimension) * size
    return {
        id(one.sharded)
        for one, first, numel in zip(managed, places, numels, strict=True)
        if first < begin + size and first + numel > begin
    }
