"""Carry out a plan: unit by unit, innermost first, prepare the tensors as FSDP1 does and call ``fully_shard``."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from fsdp_compat.applying.containers import as_plain_module, keep_class_name
from fsdp_compat.applying.left_out import leaving_out
from fsdp_compat.applying.materialize import broadcast_from_first_rank, materialize, move_to, own_buffers
from fsdp_compat.applying.own_weights import assemble_own_weights
from fsdp_compat.messages import warn_caller
from fsdp_compat.optimizers.replaced import note_parameters, refuse_exchanged_parameters, watch
from fsdp_compat.planning.make_plan import is_container_class
from fsdp_compat.planning.mesh import MeshBuilder, compute_device, use_device
from fsdp_compat.planning.mixed_precision import run_in_full_precision
from fsdp_compat.planning.options import KEEP_AFTER_FORWARD
from fsdp_compat.planning.ownership import Tie
from fsdp_compat.planning.plan import Plan, Unit
from fsdp_compat.planning.records import UnitRecord, record_of, set_record
from fsdp_compat.step.autocast import cast_for_each_use
from fsdp_compat.step.buffers import cast_buffers_when_computing
from fsdp_compat.step.eval_precision import follow_mode
from fsdp_compat.step.exec_order import check_forward_order
from fsdp_compat.step.first_forwards import cast_where_forwards_begin
from fsdp_compat.step.low_precision_grads import keep_low_precision_grads
from fsdp_compat.step.prefetch import prefetch_after_first_forward
from fsdp_compat.step.reduction import averages, divide_explicitly
from fsdp_compat.torch_.backports import make_cpu_work
from fsdp_compat.torch_.gradients import reduce_again, reduce_unused_as_zeros
from fsdp_compat.torch_.kept_gradients import keep_cleared_gradients, keep_frozen_gradients
from fsdp_compat.torch_.param_groups import forget_place, refuse_tensor_parallelism, set_input_cast
from fsdp_compat.torch_.registered import keep_requires_grad, register_sharded
from fsdp_compat.torch_.second_derivatives import keep_for_second_derivatives
from fsdp_compat.torch_.sum_order import add_up_as_they_come
from fsdp_compat.torch_.versions import WORKS_ON_CPU
from fsdp_compat.units import Place, parameter_at
from fsdp_compat.vocabulary import ShardingStrategy

_EXPOSED = "_fsdp_compat_tied_"


def apply_plan(plan: Plan) -> None:
    """Shard ``plan.root`` in place. Every rank must call it with an equal plan.

    Raises ValueError before anything is touched if the units' devices contradict each other.
    """
    device, meshes = _devices_and_meshes(plan)
    use_device(device)
    if device.type == "cpu" and not WORKS_ON_CPU:
        make_cpu_work()
    around_roots = is_container_class(plan.root)
    nested = [(part, record) for part in plan.root.modules() if (record := record_of(part)) is not None]
    watch(_named_places(plan, plan.units), [unit.module for unit in plan.units], _living_on(plan.units))
    run_in_full_precision(plan.full_precision)
    wrong = {mesh for mesh in dict.fromkeys(meshes) if not averages(mesh)}
    synced: set[torch.Tensor] = set()
    for unit, mesh in zip(plan.units, meshes, strict=True):
        _apply_unit(plan, unit, mesh, device, synced)
        if mesh in wrong:
            divide_explicitly(unit.module)
    for module, record in nested:
        if record.is_root and not around_roots:
            record.is_root = False
            set_input_cast(module, record.cast_inputs_if_nested)
    inner = [unit.module for unit in plan.units if not unit.is_root and unit.casts_as_root]
    cast_where_forwards_begin(plan.root, inner)
    # A container never runs; below one each of the outermost units is the root of its own forwards.
    for root in [unit.module for unit in plan.units if unit.is_root]:
        cast_buffers_when_computing(root)
        prefetch_after_first_forward(root)
        check_forward_order(root)


def _named_places(plan: Plan, units: Iterable[Unit]) -> list[tuple[Place, str]]:
    names = {module: name for name, module in plan.root.named_modules()}
    return [(place, f"{names[place[0]]}.{place[1]}".lstrip(".")) for unit in units for place in unit.places]


def _living_on(units: Iterable[Unit]) -> set[Place]:
    """The places of parameters that FSDP1 keeps, and with them the optimizers that hold them."""
    return {place for unit in units if unit.options.use_orig_params for place in unit.places}


def _devices_and_meshes(plan: Plan) -> tuple[torch.device, list[DeviceMesh]]:
    ignored = {parameter_at(place) for place in plan.ignored}
    root = plan.units[-1]
    device = compute_device(plan.root, root.options, ignored)
    for unit in plan.units:
        if unit.options.device_id is not root.options.device_id:
            unit_device = compute_device(unit.module, unit.options, ignored)
            if unit_device != device:
                raise ValueError(
                    f"all units must be on one device, but {unit.fqn} uses {unit_device} and the root uses {device}"
                )
    builder = MeshBuilder(device.type)
    meshes = [builder.build(unit.options) for unit in plan.units]
    for unit, mesh in zip(plan.units, meshes, strict=True):
        _check_degree(unit, mesh.size(mesh.ndim - 1))
    if meshes[-1].size() == 1 and root.options.strategy is not ShardingStrategy.NO_SHARD:
        warn_caller(
            f"FSDP is switching to use `NO_SHARD` instead of {root.options.strategy} since the world size is 1. It "
            "computes the same."
        )
    return device, meshes


def _check_degree(unit: Unit, ranks: int) -> None:
    degree = unit.options.reshard_after_forward
    if degree is not None and ranks % degree != 0:
        divisors = [str(count) for count in range(2, ranks + 1) if ranks % count == 0]
        raise ValueError(
            f"reshard_after_forward={degree} does not divide the {ranks} ranks that shard {unit.fqn or 'the root'}. "
            f"Take {' or '.join(divisors) or 'none: a single rank shards nothing'}."
        )


def _apply_unit(plan: Plan, unit: Unit, mesh: DeviceMesh, device: torch.device, synced: set[torch.Tensor]) -> None:
    on_meta = any(parameter_at(place).is_meta for place in unit.places)
    materialize(unit.module, unit.options.param_init_fn, device, plan.ignored_modules)
    if on_meta:
        note_parameters(_named_places(plan, [unit]), _living_on([unit]))
    params = list(dict.fromkeys(map(parameter_at, unit.places)))
    move_to(device, params, own_buffers(unit.module, plan.ignored_modules))
    if unit.options.sync_module_states:
        buffers = [buffer for buffer in dict.fromkeys(unit.module.buffers()) if buffer not in synced]
        synced.update(buffers)
        broadcast_from_first_rank([*buffers, *params], mesh)
    else:
        assemble_own_weights(params, unit.options, mesh, unit.fqn)
    ignored = {parameter_at(place) for place in plan.ignored}
    left_to_outer = {parameter_at(tie.places[0]) for tie in plan.ties if unit.module in tie.inner_units}
    exposed = [tie for tie in plan.ties if tie.owner is unit.module and not tie.owner_sees_it]
    with (
        _attributes_kept(unit),
        _buffers_left_in_place(plan.ignored_modules),
        leaving_out(unit.module, ignored | left_to_outer) as arguments,
        _exposed(unit.module, exposed),
        as_plain_module(unit.module),
    ):
        fully_shard(unit.module, mesh=mesh, **arguments, **unit.kwargs)
    keep_class_name(unit.module)
    for index in range(len(exposed)):
        forget_place(unit.module, unit.module, f"{_EXPOSED}{index}")
    refuse_tensor_parallelism({module for module, _ in unit.places})
    # FSDP1 reduces a unit's gradients as one tensor, with zeros for what was not used.
    reduce_unused_as_zeros(unit.module)
    reduce_again(unit.module)
    add_up_as_they_come(unit.module)
    keep_for_second_derivatives(unit.module)
    keep_requires_grad(unit.module)
    keeps = unit.options.use_orig_params and unit.options.strategy in KEEP_AFTER_FORWARD
    register_sharded(unit.module, gathered_while_training=keeps)
    keep_cleared_gradients(unit.module, gathered_while_training=keeps)
    if keeps or not unit.options.use_orig_params:
        keep_frozen_gradients(unit.module)
    refuse_exchanged_parameters(unit.module)
    cast_for_each_use(unit.module)
    precision = unit.precision
    set_record(
        unit.module,
        UnitRecord(
            options=unit.options,
            mesh=mesh,
            device=device,
            is_root=unit.is_root,
            cast_inputs_if_nested=precision is not None and precision.cast_inputs and bool(unit.places),
            buffer_dtype=precision.buffer_dtype if precision is not None else None,
            ignored_modules=plan.ignored_modules,
        ),
    )
    if precision is not None and precision.full_in_eval:
        follow_mode(unit.module)
    if precision is not None and precision.keep_low_precision_grads:
        keep_low_precision_grads(unit.module, precision)


@contextlib.contextmanager
def _exposed(module: nn.Module, ties: Collection[Tie]) -> Iterator[None]:
    """Register parameters of nested units at ``module`` itself, since ``fully_shard`` does not look into those."""
    for index, tie in enumerate(ties):
        module._parameters[f"{_EXPOSED}{index}"] = parameter_at(tie.places[0])
    try:
        yield
    finally:
        for index in range(len(ties)):
            del module._parameters[f"{_EXPOSED}{index}"]


@contextlib.contextmanager
def _attributes_kept(unit: Unit) -> Iterator[None]:
    """What a program has noted on parameters (``parameter.no_decay = True``) stays on those that take their place.

    FSDP1 keeps the parameters themselves with ``use_orig_params=True``, and loses them without.
    """
    places = unit.places if unit.options.use_orig_params else ()
    before = [(place, vars(parameter_at(place))) for place in places]
    yield
    for place, attributes in before:
        new = vars(parameter_at(place))
        for name, value in attributes.items():
            new.setdefault(name, value)


@contextlib.contextmanager
def _buffers_left_in_place(modules: Collection[nn.Module]) -> Iterator[None]:
    """``fully_shard`` moves the buffers of ignored modules to its device; FSDP1 leaves them where they are."""
    before = [(buffer, buffer.data) for module in modules for buffer in module.buffers(recurse=False)]
    yield
    for buffer, data in before:
        if buffer.device != data.device:
            buffer.data = data
