"""The parameters of a model as they are unsharded, whether it is plain, wrapped by FSDP1, or sharded by FSDP2."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.torch_.param_groups import managed_parameters


@dataclass(frozen=True)
class WholeParameter:
    """``shape`` of the whole; ``places``: the modules that register it. ``tensor``: autograd's leaf, if it is known.

    Of a sharded parameter autograd sees another tensor, which is not known before its first gather.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool
    places: tuple[int, ...]
    tensor: torch.Tensor | None

    def storages(self) -> Iterator[int]:
        """The storage of a plain parameter."""
        if self.tensor is not None:
            yield self.tensor.untyped_storage()._cdata

    def as_tuple(self) -> tuple[str, int, int, str, bool, tuple[int, ...]]:
        """Plain values: name, rows, elements of a row, dtype, whether it is trained, places."""
        rows = self.shape[0] if self.shape else 1
        dtype = str(self.dtype).removeprefix("torch.")
        return (self.name, rows, math.prod(self.shape[1:]), dtype, self.trained, self.places)


def whole_parameters(model: nn.Module, modules: Sequence[tuple[str, nn.Module]]) -> list[WholeParameter]:
    """Every parameter once. ``modules``: those that count, by name, without FSDP1's wrappers.

    :raises NotImplementedError: tensor parallelism shards some of them, too.
    """
    place_of = {id(module): place for place, (_, module) in enumerate(modules)}
    found: dict[int, tuple[tuple[int, ...], torch.dtype, bool, torch.Tensor | None, list[tuple[int, str]]]] = {}
    covered: set[tuple[int, str]] = set()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for managed in managed_parameters(module):
                if managed.sharded.device_mesh.ndim > managed.data_dimensions:
                    raise NotImplementedError("layouts of models with tensor parallelism are not supported here")
                entries = [(place_of[id(owner)], name) for owner, name in managed.places]
                sharded = managed.sharded
                found[id(sharded)] = (tuple(sharded.shape), sharded.dtype, sharded.requires_grad, None, entries)
                covered |= set(entries)
        elif "_fsdp_wrapped_module" in module._modules and getattr(module, "_handle", None) is not None:
            for key, entry in _of_flat(module, place_of):
                found[key] = entry
                covered |= set(entry[4])
    for place, (_, module) in enumerate(modules):
        for name, parameter in module._parameters.items():
            # FSDP1 registers its flat parameter there, too.
            if parameter is not None and name != "_flat_param" and (place, name) not in covered:
                entry = (tuple(parameter.shape), parameter.dtype, parameter.requires_grad, parameter, [(place, name)])
                found.setdefault(id(parameter), (*entry[:4], []))[4].append((place, name))
    return [
        WholeParameter(
            f"{modules[entries[0][0]][0]}.{entries[0][1]}".lstrip("."),
            shape,
            dtype,
            trained,
            tuple(dict.fromkeys(place for place, _ in entries)),
            tensor,
        )
        for shape, dtype, trained, tensor, entries in found.values()
    ]


def _of_flat(wrapper: Any, place_of: dict[int, int]) -> Iterator[tuple[int, Any]]:
    """The parts of FSDP1's flat parameter, with what shares them."""
    flat = wrapper._handle.flat_param
    shared = [
        (info.module, info.param_name, info.prim_module, info.prim_param_name) for info in flat._shared_param_infos
    ]
    trained = flat._params or [flat] * len(flat._shapes)
    for number, (info, shape) in enumerate(zip(flat._param_infos, flat._shapes, strict=True)):
        entries = [(place_of[id(info.module)], info.param_name)]
        entries += [
            (place_of[id(module)], name)
            for module, name, first, first_name in shared
            if first is info.module and first_name == info.param_name
        ]
        # Parts have no identity before a forward: the flat parameter's and a number stand for one.
        key = hash((id(flat), number))
        yield key, (tuple(shape), flat.dtype, bool(trained[number].requires_grad), None, entries)
