"""The counters of steps in a state that is loaded, which FSDP1 counts on in.

With ``use_orig_params=True`` it gives the optimizer the very tensors without dimensions that it is given, for those
parameters that its part of a flat parameter reaches: what is loaded a second time, or saved, has the later steps.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from fsdp_compat.planning.records import UnitRecord, record_of
from fsdp_compat.torch_.param_groups import ManagedParameter, managed_parameters
from fsdp_compat.units import fsdp_modules

#: In a flat parameter of ``use_orig_params=True`` each parameter begins at a multiple of so many bytes.
_ALIGNMENT = 16
#: What was loaded of a counter that FSDP1 does not have on this rank: it counts on, and the counter does not.
_counting: MutableMapping[torch.Tensor, torch.Tensor] = WeakTensorKeyDictionary()


class Counters:
    """Of the units of ``model``; ``is_sent`` says whether one rank has the state and sends it to the others."""

    def __init__(self, model: nn.Module, *, is_sent: bool) -> None:
        self._is_sent = is_sent
        self._managed: set[int] = set()
        self._own: set[int] = set()
        for unit in fsdp_modules(model):
            record, managed = record_of(unit), managed_parameters(unit)
            if record is not None and record.options.use_orig_params and managed:
                self._managed |= {id(one.sharded) for one in managed}
                places = [(id(module), name) for module in unit.modules() for name in module._parameters]
                order = {place: number for number, place in enumerate(places)}
                managed.sort(key=lambda one: min(order[id(module), name] for module, name in one.places))
                self._own |= _in_shard(managed, record)

    def loaded(self, given: torch.Tensor, value: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
        """What the optimizer gets for the counter ``given``, whose value is ``value`` here."""
        if id(param) in self._own:
            return value
        if self._is_sent or id(param) not in self._managed:
            return value.clone()
        return _counting.setdefault(given, value.clone())


def _in_shard(managed: list[ManagedParameter], record: UnitRecord) -> set[int]:
    """The identities of those sharded parameters of a unit that FSDP1 has on this rank."""
    mesh, dimension = managed[0].sharded.device_mesh, managed[0].data_dimensions - 1
    dtype = getattr(record.options.mixed_precision, "param_dtype", None) or managed[0].sharded.dtype
    aligned = _ALIGNMENT // dtype.itemsize
    total, places = 0, []
    for one in managed:
        first = total + -total % aligned
        total = first + one.sharded.numel()
        places.append((id(one.sharded), first, total))
    size = -(-total // mesh.size(dimension))
    begin = mesh.get_local_rank(dimension) * size
    return {key for key, first, last in places if first < begin + size and last > begin}
