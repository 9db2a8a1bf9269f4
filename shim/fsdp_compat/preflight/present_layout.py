"""How a model that has run is sharded now, as plain values for ``fsdp_migrate.tune``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from fsdp_compat.preflight.facts import UnitFacts, look
from fsdp_compat.torch_.param_groups import param_groups

#: Tensors of a parameter's size that an optimizer keeps for each.
_STATES = {"Adagrad": 1, "RMSprop": 1, "Rprop": 2, "Lion": 1, "Muon": 1, "ASGD": 1, "Adafactor": 0}


def present_layout(model: nn.Module, modules: Sequence[tuple[str, nn.Module]]) -> dict[str, Any]:
    """Units, children first, by the places of their modules; ranks and precision are those of the root's unit.

    ``modules``: those of a :class:`~fsdp_compat.preflight.timeline.Timeline`. A model that is not sharded is one unit
    that every rank has whole.
    """
    place_of = {id(module): place for place, (_, module) in enumerate(modules)}
    units: dict[tuple[int, ...], bool | int | None] = {}
    facts = look(model, None, ())
    for unit in facts.units:
        module = unit.module._modules.get("_fsdp_wrapped_module") or unit.module
        places: tuple[int, ...] = (place_of[id(module)],)
        reshard: bool | int = unit.reshard
        if isinstance(module, FSDPModule):
            group = param_groups(module)[0]
            places = tuple(sorted(place_of[id(each)] for each in group.modules))
            reshard = _reshard(group)
        # The root keeps its parameters by default, and FSDP1's whatever its strategy.
        keeps = places == (0,) and (reshard is False or unit.kind == "FSDP1")
        units[places] = None if keeps else reshard
    units.setdefault((0,), None)
    first = facts.root or next(iter(facts.units), None)
    return {
        "kind": first.kind if first else "plain",
        "units": [[list(places), units[places]] for places in sorted(units, key=min, reverse=True)],
        "fsdp1": _fsdp1(first.module) if first is not None and first.kind == "FSDP1" else None,
        **_shape(first, facts.world),
    }


def _fsdp1(module: Any) -> dict[str, Any]:
    """FSDP1's settings that decide when its root gathers, and how much."""
    ahead = module.backward_prefetch
    return {
        "aligned": module._use_orig_params,
        "backward": "" if ahead is None else ahead.name.removeprefix("BACKWARD_").lower(),
        "forward": module.forward_prefetch,
    }


def _reshard(group: Any) -> bool | int:
    after = group.post_forward_mesh_info
    if after is None:
        return False
    return True if after.shard_mesh_size == group.mesh_info.shard_mesh_size else int(after.shard_mesh_size)


def _shape(unit: UnitFacts | None, world: int) -> dict[str, Any]:
    if unit is None:
        return {"shards": 1, "replicas": world, "param_dtype": None, "reduce_dtype": None}
    reduced = unit.reduce_dtype if unit.reduce_dtype is not None else unit.param_dtype
    return {
        "shards": unit.shards,
        "replicas": unit.replicas,
        "param_dtype": _name(unit.param_dtype),
        "reduce_dtype": _name(reduced),
    }


def _name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def optimizer_costs(optimizer: Optimizer, device: torch.device) -> dict[str, Any]:
    """``states``: how many tensors of a parameter's size it keeps; ``temporaries``: how many it needs while it steps.

    By its class and settings, since it has no state yet; of an unknown class what Adam keeps is assumed.
    """
    name, defaults = type(optimizer).__name__, optimizer.defaults
    states = _STATES.get(name, 2) + bool(defaults.get("amsgrad"))
    if name == "SGD":
        states = int(bool(defaults.get("momentum")))
    many = defaults.get("foreach") or (defaults.get("foreach") is None and device.type == "cuda")
    return {"name": name, "states": states, "temporaries": int(bool(many) and not defaults.get("fused"))}
