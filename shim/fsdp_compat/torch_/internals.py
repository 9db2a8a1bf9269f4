"""The only place that reaches into FSDP2's private state, for what it offers no public way to ask or undo.

Everything here was present from torch 2.8 to 2.15. A new torch version that moves one of these names breaks this
file and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.distributed.tensor import DTensor, Partial

from fsdp_compat.torch_.versions import HAS_GRAD_DTYPE

_ABSENT = object()
_SHOWN = "_fsdp_compat_shown"
#: The attribute of a unit that has the flags of its parameters as they were when it was gathered.
_FLAGS = "_fsdp_compat_requires_grad"


@dataclasses.dataclass(frozen=True)
class ManagedParameter:
    """One parameter of one FSDP2 unit, and every place that registers it (more than one where it is tied).

    The first ``data_dimensions`` of the mesh of ``sharded`` are FSDP's; those after them are tensor parallelism's.
    """

    sharded: DTensor
    unsharded: nn.Parameter | None
    places: tuple[tuple[nn.Module, str], ...]
    data_dimensions: int


def fsdp_state(module: nn.Module) -> Any:
    if not isinstance(module, FSDPModule):
        raise TypeError(f"{type(module).__name__} is not sharded with fully_shard")
    return module._get_fsdp_state()


def param_groups(module: nn.Module) -> list[Any]:
    """The communication groups of one unit: none where the unit manages no parameter."""
    state = fsdp_state(module)
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def managed_parameters(module: nn.Module) -> list[ManagedParameter]:
    """The parameters that this unit itself gathers and reduces; those of nested units are not among them."""
    return [
        ManagedParameter(
            sharded=param.sharded_param,
            unsharded=getattr(param, "_unsharded_param", None),
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
    """Names in the module of one unit's parameters in whose place something else is registered, which FSDP2 ignores."""
    return [
        info.param_name if module is info.module else f"{type(info.module).__name__}.{info.param_name}"
        for group in param_groups(module)
        for param in group.fsdp_params
        for info in [param._module_info]
        if (registered := info.module._parameters.get(info.param_name)) is not param.sharded_param
        and registered is not getattr(param, "_unsharded_param", None)
        and registered is not getattr(param, "_sharded_post_forward_param", None)
    ]


def has_run(module: nn.Module) -> bool:
    """Whether one unit has settled its shards, which it does at its first forward."""
    return any(group._reset_sharded_params for group in param_groups(module))


def is_left_alone(module: nn.Module) -> bool:
    """Whether one unit is inside :func:`left_alone`."""
    return any(_is_left_alone(group) for group in param_groups(module))


def _is_left_alone(group: Any) -> bool:
    return vars(group).get("_to_sharded") is _do_nothing


def is_running(module: nn.Module) -> bool:
    """Whether one unit is inside its forward or its backward."""
    return bool(fsdp_state(module)._training_state.name != "IDLE")


def is_nested(module: nn.Module) -> bool:
    """Whether FSDP2 has found ``module`` to lie inside another unit. Unknown (False) before the first forward."""
    return fsdp_state(module)._is_root is False


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


def all_reduce_with(module: nn.Module, all_reduce: Callable[[torch.Tensor], None]) -> None:
    """Make one unit whose parameters are not sharded leave its gradients, flat and whole, to ``all_reduce`` alone."""
    for group in param_groups(module):
        # Of two meshes FSDP2 keeps the one of a single rank, over which there is nothing to do, and calls its hook.
        shard = group.mesh_info
        group.mesh_info = FSDPMeshInfo(mesh=shard.mesh, shard_mesh_dim=shard.shard_mesh_dim)
        group._all_reduce_hook = all_reduce


def set_reduce_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Make one unit reduce its gradients in ``dtype`` from its next backward on."""
    for group in param_groups(module):
        # From 2.15 on each parameter has a policy of its own.
        for owner in (group, *group.fsdp_params):
            if hasattr(owner, "mp_policy"):
                owner.mp_policy = dataclasses.replace(owner.mp_policy, reduce_dtype=dtype)
        group._init_mp_dtypes()


Kept: TypeAlias = dict[tuple[int, str], Any]


def exchange_precision(module: nn.Module, kept: Kept) -> None:
    """Put one unit into full precision and its precision, with what was gathered in it, into ``kept``; or back again.

    ``kept`` is empty at first and belongs to this unit. Ends with the unit sharded.
    """
    groups = param_groups(module)
    for group in groups:
        if group._all_gather_result is not None:
            group.wait_for_unshard()
        group._to_sharded()
    full = MixedPrecisionPolicy(cast_forward_inputs=False)
    exchanged: list[tuple[Any, str, Any]] = [(fsdp_state(module), "_mp_policy", full)]
    exchanged += [(group, "mp_policy", full) for group in groups]
    for param in (param for group in groups for param in group.fsdp_params):
        if hasattr(param, "mp_policy"):
            exchanged.append((param, "mp_policy", full))
        exchanged += [(param, "all_gather_outputs", []), (param, "_unsharded_param", _ABSENT)]
    for owner, name, default in exchanged:
        key = (id(owner), name)
        value = kept.get(key, default)
        kept[key] = getattr(owner, name, _ABSENT)
        if value is not _ABSENT:
            setattr(owner, name, value)
        elif hasattr(owner, name):
            delattr(owner, name)
    for group in groups:
        group._init_mp_dtypes()


@contextlib.contextmanager
def gradient_sync_off(units: Collection[nn.Module], kept: Collection[nn.Module] = ()) -> Iterator[None]:
    """No gradient communication for ``units`` inside; afterwards each has exactly the flags it had.

    Those in ``kept`` stay gathered after a backward inside, so that the next forward does not gather them again.
    """
    names = ("reduce_grads", "all_reduce_grads", "reshard_after_backward")
    groups = [(group, unit in kept) for unit in units for group in param_groups(unit)]
    flags = [(group, name, getattr(group, name)) for group, _ in groups for name in names]
    try:
        for group, stays_gathered in groups:
            group.reduce_grads = group.all_reduce_grads = False
            group.reshard_after_backward = group.reshard_after_backward and not stays_gathered
        yield
    finally:
        for group, name, value in flags:
            setattr(group, name, value)


def show_unreduced(module: nn.Module) -> None:
    """Make one unit show in ``.grad`` what it accumulates without reducing it, and heed what becomes of it there.

    As under FSDP1 that is in the dtype that was computed in, and no longer there once ``.grad`` was set to None.
    Not shown are gradients of tensor-parallel parameters and those that wait on another device than their parameters.
    """
    for group in param_groups(module):
        if not hasattr(group, _SHOWN):
            setattr(group, _SHOWN, True)
            group.pre_backward = functools.partial(_pre_backward_taking_back, group, group.pre_backward)
            group.post_backward = functools.partial(_post_backward_showing, group, group.post_backward)


def _pre_backward_taking_back(group: Any, pre_backward: Callable[..., None], *arguments: Any) -> None:
    for param in group.fsdp_params:
        # Else what waits is cast to the dtype of the reduction. The group has its own note of that.
        param.reduce_dtype = None
        _take_back(param)
    pre_backward(*arguments)


def _post_backward_showing(group: Any, post_backward: Callable[..., None], *arguments: Any) -> None:
    for param in group.fsdp_params:
        _take_back(param)
    post_backward(*arguments)
    if not group.reduce_grads:
        for param in group.fsdp_params:
            _show(param)


def _show(param: Any) -> None:
    waiting = param.unsharded_accumulated_grad
    if waiting is None:
        waiting = param._unsharded_param.grad if hasattr(param, "_unsharded_param") else None
    sharded = param.sharded_param
    if waiting is None or param.is_dtensor or waiting.device != sharded.device:
        return
    if waiting.dtype != sharded.dtype:
        if not HAS_GRAD_DTYPE:
            return
        sharded.grad_dtype = None
    mesh = sharded.device_mesh
    shown = DTensor.from_local(waiting, mesh, [Partial("avg")] * mesh.ndim, run_check=False)
    setattr(param, _SHOWN, (shown, sharded.grad))
    sharded.grad = shown


def _take_back(param: Any) -> None:
    """Leave in ``.grad`` what it held before something was shown there, or what a user has put there instead."""
    if not hasattr(param, _SHOWN):
        return
    shown, before = getattr(param, _SHOWN)
    delattr(param, _SHOWN)
    if param.sharded_param.grad is shown:
        param.sharded_param.grad = before
        return
    # From 2.15 on what waits lies in the gathered parameter alone, and this is a view of it.
    if "unsharded_accumulated_grad" in vars(param):
        param.unsharded_accumulated_grad = None
    if hasattr(param, "_unsharded_param"):
        param._unsharded_param.grad = None


def reduce_unused_as_zeros(module: nn.Module) -> None:
    """Make one unit reduce zeros for each parameter without a gradient on this rank, if another of its own has one.

    FSDP2 leaves such parameters out of the reduction, so ranks that use different ones add up what does not belong
    together.
    """
    for group in param_groups(module):
        group.post_backward = functools.partial(_post_backward_with_zeros, group, group.post_backward)


def _post_backward_with_zeros(group: Any, post_backward: Callable[..., None], *arguments: Any) -> None:
    if group.reduce_grads:
        used, unused = False, []
        for param in group.fsdp_params:
            if hasattr(param.sharded_param, "_in_backward_optimizers"):
                raise NotImplementedError(
                    f"{param._param_fqn} has an optimizer that is to step in the backward, which FSDP2 leaves out. "
                    "Step in a hook instead: param.register_post_accumulate_grad_hook(...) after sharding."
                )
            full = getattr(param, "_unsharded_param", None)
            if full is None or not full.requires_grad:
                continue
            if full.grad is not None or param.unsharded_accumulated_grad is not None:
                used = True
            else:
                unused.append(full)
        for full in unused if used else ():
            full.grad = torch.zeros_like(full)
    post_backward(*arguments)


def keep_requires_grad(module: nn.Module) -> None:
    """Make one unit heed a change of ``requires_grad`` while it is gathered, as after a forward without a backward.

    FSDP1 has one parameter, whose flag it is. FSDP2 has two, shows the gathered one then, and forgets what was set on
    it with the next reshard; what was set on the sharded one, by who kept it, it heeds with the next gathering only.
    """
    for group in param_groups(module):
        group._to_unsharded = functools.partial(_to_unsharded_noting, group, group._to_unsharded)
        group._to_sharded = functools.partial(_after_taking_flags, group, group._to_sharded)
        group.pre_forward = functools.partial(_after_taking_flags, group, group.pre_forward)


def _to_unsharded_noting(group: Any, to_unsharded: Callable[[], None]) -> None:
    to_unsharded()
    _note_flags(group)


def _note_flags(group: Any) -> None:
    setattr(group, _FLAGS, [param.sharded_param.requires_grad for param in group.fsdp_params])


def _after_taking_flags(group: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    if group.is_unsharded and hasattr(group, _FLAGS) and not _is_left_alone(group):
        for param, before in zip(group.fsdp_params, getattr(group, _FLAGS), strict=True):
            full, sharded = param._unsharded_param, param.sharded_param
            if full.requires_grad != sharded.requires_grad:
                changed = full.requires_grad if sharded.requires_grad == before else sharded.requires_grad
                full.requires_grad_(changed)
                sharded.requires_grad_(changed)
        _note_flags(group)
    return call(*arguments)


@contextlib.contextmanager
def left_alone(module: nn.Module) -> Iterator[None]:
    """Inside, FSDP2 leaves what ``module``'s unit registers as parameters as it is.

    The unit's forward neither gathers nor frees nor casts its inputs; ``state_dict``, ``load_state_dict`` and ``to``
    work on what is registered. The unit must be sharded (:meth:`FSDPModule.reshard`) at entry and counts as sharded
    again at exit; whoever exchanges the registered parameters puts the sharded ones back.
    """
    groups = param_groups(module)
    states = [group._sharded_state for group in groups]
    cast = set_input_cast(module, False)
    # Attributes of the instances, which hide the methods of the same name, or other attributes, until they go again.
    params = [param for group in groups for param in group.fsdp_params]
    hidden = [(group, name, _do_nothing) for group in groups for name in ("_to_sharded", "_to_sharded_post_forward")]
    hidden += [(param, "reset_sharded_param", _do_nothing) for param in params]
    # From 2.15 on a forward looks at what was gathered, even if there is nothing to do with it.
    hidden += [
        (param, "_unsharded_param", param.sharded_param) for param in params if not hasattr(param, "_unsharded_param")
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in hidden if name in vars(owner)]
    try:
        for group in groups:
            group._sharded_state = type(group._sharded_state).UNSHARDED
        for owner, name, value in hidden:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, _ in hidden:
            delattr(owner, name)
        for owner, name, value in before:
            setattr(owner, name, value)
        for group, state in zip(groups, states, strict=True):
            group._sharded_state = state
        set_input_cast(module, cast)


def _do_nothing() -> None:
    return None


def prepare(module: nn.Module) -> None:
    """Settle one unit's shards and dtypes as its first gather would, without deciding which unit is the root."""
    for group in param_groups(module):
        group.lazy_init()


def gathered_copies(units: Iterable[nn.Module]) -> dict[int, str]:
    """The temporary full parameters that stand in the modules between a gather and the next free: identity to name."""
    return {
        id(copy): param._param_fqn or param._module_info.param_name
        for unit in units
        for group in param_groups(unit)
        for param in group.fsdp_params
        if isinstance(copy := getattr(param, "_unsharded_param", None), torch.Tensor)
    }


def unreduced_gradients(module: nn.Module) -> list[tuple[DTensor, torch.Tensor]]:
    """Gradients of one unit's sharded parameters that wait outside ``.grad`` for the end of an accumulation.

    In HSDP one tensor may hold those of the whole unit; it then comes with each of its parameters.
    """
    found: list[tuple[DTensor, torch.Tensor]] = []
    for group in param_groups(module):
        trained = [param for param in group.fsdp_params if param.sharded_param.requires_grad]
        found += [
            (param.sharded_param, param.unsharded_accumulated_grad)
            for param in trained
            if param.unsharded_accumulated_grad is not None
        ]
        if group._partial_reduce_output is not None:
            found += [(param.sharded_param, group._partial_reduce_output) for param in trained]
    return found


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


def is_being_gathered(module: nn.Module) -> bool:
    """Whether this unit's parameters have been asked for, and nobody has waited for them yet."""
    return any(group._all_gather_result is not None for group in param_groups(module))


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
    """Have ``distribute_module``, which ``parallelize_module`` calls, raise RuntimeError for ``modules`` from now on.

    It looks at this attribute to see whether it has been there before; what says so already is left.
    """
    for module in modules:
        module.__dict__.setdefault("_distribute_module_applied", _REFUSAL)
