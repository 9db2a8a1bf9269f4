"""FSDP2's communication groups of a unit: what they manage, where it is registered, over which ranks.

With :mod:`.gradients`, :mod:`.kept_gradients`, :mod:`.gathering`, :mod:`.registered`, :mod:`.second_derivatives` and
:mod:`.sum_order` the only place that reaches into FSDP2's private state, for what it offers no public way to ask or
undo. Everything in them was present from torch 2.8 to 2.15; a new torch that moves one of these names breaks these
seven files and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


@dataclasses.dataclass(frozen=True)
class ManagedParameter:
    """One parameter of one FSDP2 unit, and every place that registers it (more than one where it is tied).

    ``post_forward`` is what stays of it on fewer ranks between forward and backward.
    The first ``data_dimensions`` of the mesh of ``sharded`` are FSDP's; those after them are tensor parallelism's.
    """

    sharded: DTensor
    unsharded: nn.Parameter | None
    post_forward: DTensor | None
    places: tuple[tuple[nn.Module, str], ...]
    data_dimensions: int


def fsdp_state(module: nn.Module) -> Any:
    if not isinstance(module, FSDPModule):
        raise TypeError(f"{type(module).__name__} is not sharded with fully_shard")
    return module._get_fsdp_state()


def param_groups(module: nn.Module) -> list[Any]:
    """The communication groups of one unit: none where the unit manages no parameter."""
    return groups_of(fsdp_state(module))


def groups_of(state: Any) -> list[Any]:
    """:func:`param_groups` by the unit's state."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def managed_parameters(module: nn.Module) -> list[ManagedParameter]:
    """The parameters that this unit itself gathers and reduces; those of nested units are not among them."""
    return [
        ManagedParameter(
            sharded=param.sharded_param,
            unsharded=getattr(param, "_unsharded_param", None),
            post_forward=getattr(param, "_sharded_post_forward_param", None),
            places=_places(param._module_info),
            data_dimensions=param.mesh_info.mesh.ndim,
        )
        for group in param_groups(module)
        for param in group.fsdp_params
    ]


def _places(info: Any) -> tuple[tuple[nn.Module, str], ...]:
    shared = zip(info.shared_modules, info.shared_param_names, strict=True)
    return ((info.module, info.param_name), *shared)


def forget_place(module: nn.Module, owner: nn.Module, name: str) -> None:
    """Make ``module``'s unit stop registering the parameter at ``owner.name``; its other places stay."""
    for group in param_groups(module):
        for param in group.fsdp_params:
            places = [place for place in _places(param._module_info) if place != (owner, name)]
            if len(places) < len(_places(param._module_info)):
                info = param._module_info
                (info.module, info.param_name), *rest = places
                info.shared_modules = [shared for shared, _ in rest]
                info.shared_param_names = [shared for _, shared in rest]


def exchanged_parameters(module: nn.Module) -> list[str]:
    """Names in the module of one unit's parameters in whose place something else is registered, which FSDP2 ignores.

    Views of the gathered ones, which a forward reads, stay registered where it raised.
    """
    return [
        info.param_name if module is info.module else f"{type(info.module).__name__}.{info.param_name}"
        for group in param_groups(module)
        for param in group.fsdp_params
        for info in [param._module_info]
        if (registered := info.module._parameters.get(info.param_name)) is not param.sharded_param
        and registered is not getattr(param, "_unsharded_param", None)
        and registered is not getattr(param, "_sharded_post_forward_param", None)
        and (registered is None or registered._base is not getattr(param, "_unsharded_param", registered))
    ]


def has_run(module: nn.Module) -> bool:
    """Whether one unit has settled its shards, which it does at its first forward."""
    return any(group._reset_sharded_params for group in param_groups(module))


def is_running(module: nn.Module) -> bool:
    """Whether one unit is inside its forward or its backward."""
    return bool(fsdp_state(module)._training_state.name != "IDLE")


def is_nested(module: nn.Module) -> bool:
    """Whether FSDP2 has found ``module`` to lie inside another unit. Unknown (False) before the first forward."""
    return fsdp_state(module)._is_root is False


def has_begun(module: nn.Module) -> bool:
    """Whether a forward of one unit, or of one around it, has begun at any time."""
    return fsdp_state(module)._is_root is not None


def keeps_after_forward(module: nn.Module) -> bool:
    """Whether one unit was sharded with ``reshard_after_forward=False``. Not the root, where nothing was said of it."""
    state = fsdp_state(module)
    groups = groups_of(state)
    said = not getattr(state, "_auto_reshard_after_forward", False)
    return said and bool(groups) and all(group.post_forward_mesh_info is None for group in groups)


def set_input_cast(module: nn.Module, cast_forward_inputs: bool) -> bool:
    """Turn the cast of floating-point forward inputs on or off for one unit; returns what it was."""
    state = fsdp_state(module)
    before = bool(state._mp_policy.cast_forward_inputs)
    state._mp_policy = dataclasses.replace(state._mp_policy, cast_forward_inputs=cast_forward_inputs)
    return before


@dataclasses.dataclass(frozen=True)
class ReductionGroups:
    """Which ranks one unit's gradients are reduced over; the first group only, where there are two (``is_hybrid``)."""

    reduced_over: dist.ProcessGroup
    is_replicated: bool
    is_hybrid: bool


def reduction_groups(module: nn.Module) -> ReductionGroups:
    """Of a unit that manages parameters."""
    mesh = param_groups(module)[0].mesh_info
    replicates = getattr(mesh, "replicate_process_group", None) is not None
    is_replicated = mesh.shard_mesh_size == 1
    return ReductionGroups(
        reduced_over=mesh.replicate_process_group if replicates and is_replicated else mesh.shard_process_group,
        is_replicated=is_replicated,
        is_hybrid=replicates and not is_replicated,
    )


def root_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh that ``mesh`` was cut out of; ``mesh`` itself if it was built as it is."""
    if hasattr(mesh, "_get_root_mesh"):
        root: DeviceMesh = mesh._get_root_mesh()
    else:
        # Before 2.10 a registry knew the root of each mesh.
        root = torch.distributed.device_mesh._mesh_resources.get_root_mesh(mesh)
    return root


def prefetches_in_forward(module: nn.Module) -> bool:
    """Whether ``set_modules_to_forward_prefetch`` has given this unit others to gather early."""
    return bool(fsdp_state(module)._states_to_forward_prefetch)


def group_of_sharded_tensor(value: Any) -> dist.ProcessGroup:
    """The process group that a ShardedTensor lies on."""
    group: dist.ProcessGroup = value._process_group
    return group


class _Refusal:
    """Raises where it is asked whether it holds."""

    def __bool__(self) -> bool:
        raise RuntimeError(
            "tensor parallelism comes before FSDP: call parallelize_module (or distribute_module) on the model first, "
            "with the tensor-parallel part of one mesh, then FSDP with device_mesh=mesh[<its data-parallel part>]. "
            "This module's parameters are sharded by FSDP already."
        )


_REFUSAL = _Refusal()


def refuse_tensor_parallelism(modules: Iterable[nn.Module]) -> None:
    """Have ``distribute_module``, which ``parallelize_module`` calls, raise RuntimeError for ``modules``.

    It looks at this attribute to see whether it has been there before; what says so already is left.
    """
    for module in modules:
        module.__dict__.setdefault("_distribute_module_applied", _REFUSAL)
