"""``shard`` and ``plan``: FSDP1's constructor as a function that works in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy

from fsdp_compat.applying.apply import apply_plan
from fsdp_compat.messages import logger
from fsdp_compat.optimizers.own import stop_own_optimizers
from fsdp_compat.optimizers.relink import relink_live_optimizers
from fsdp_compat.planning.make_plan import make_plan
from fsdp_compat.planning.options import Device, Options, ProcessGroups
from fsdp_compat.planning.plan import Plan
from fsdp_compat.planning.policies import Policy
from fsdp_compat.vocabulary import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy

_Module = TypeVar("_Module", bound=nn.Module)


def shard(
    module: _Module,
    process_group: ProcessGroups | None = None,
    sharding_strategy: ShardingStrategy | None = None,
    cpu_offload: CPUOffload | OffloadPolicy | None = None,
    auto_wrap_policy: Policy | None = None,
    backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE,
    mixed_precision: MixedPrecision | MixedPrecisionPolicy | None = None,
    ignored_modules: Iterable[nn.Module] | None = None,
    param_init_fn: Callable[[nn.Module], None] | None = None,
    device_id: Device | None = None,
    sync_module_states: bool = False,
    forward_prefetch: bool = False,
    limit_all_gathers: bool = True,
    use_orig_params: bool = False,
    ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    reshard_after_forward: int | None = None,
) -> _Module:
    """Shard ``module`` with FSDP2 into the units that FSDP1 would make of it, and return the same object.

    The arguments are those of ``FullyShardedDataParallel``, in its order, with its defaults and its meaning;
    ``mixed_precision`` and ``cpu_offload`` also take FSDP2's policies. What FSDP2 always does (``use_orig_params``,
    ``limit_all_gathers``) or leaves to other calls (prefetching) is logged once and otherwise ignored.

    ``reshard_after_forward`` is FSDP2's and has no equal in FSDP1: after the forward each unit of this call stays
    sharded over that many ranks only (those of one node, say), so that the backward gathers it among fewer. It must
    divide the ranks that shard; the numbers stay the same.

    Differs from FSDP1 in that tied parameters may lie in different units, ``sync_module_states`` works on the CPU,
    and meta initialisation without ``param_init_fn`` leaves tensors alone that have values already.

    Optimizers that were built before go on training the parameters, as in FSDP1, with ``use_orig_params=True``; without
    it, and where an optimizer is no ``torch.optim.Optimizer``, its first step raises RuntimeError.

    A collective: every rank calls it. Raises ValueError, TypeError or NotImplementedError, before anything is
    touched, for arguments that contradict each other or that FSDP2 cannot honour. A module that is sharded already
    is returned as it is, unless a policy is given (ValueError).
    """
    options = Options(
        process_group=process_group,
        sharding_strategy=sharding_strategy,
        cpu_offload=cpu_offload,
        backward_prefetch=backward_prefetch,
        mixed_precision=mixed_precision,
        param_init_fn=param_init_fn,
        device_id=device_id,
        sync_module_states=sync_module_states,
        forward_prefetch=forward_prefetch,
        limit_all_gathers=limit_all_gathers,
        use_orig_params=use_orig_params,
        device_mesh=device_mesh,
        reshard_after_forward=reshard_after_forward,
    )
    if isinstance(module, FSDPModule) and auto_wrap_policy is None:
        logger.info("%s is already sharded and is not changed", type(module).__name__)
        return module
    made = make_plan(module, options, auto_wrap_policy, ignored_modules, ignored_states)
    options.log_no_ops()
    for note in made.notes:
        logger.info(note)
    apply_plan(made)
    relink_live_optimizers(module)
    stop_own_optimizers(module)
    return module


def plan(
    module: nn.Module,
    process_group: ProcessGroups | None = None,
    sharding_strategy: ShardingStrategy | None = None,
    cpu_offload: CPUOffload | OffloadPolicy | None = None,
    auto_wrap_policy: Policy | None = None,
    backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE,
    mixed_precision: MixedPrecision | MixedPrecisionPolicy | None = None,
    ignored_modules: Iterable[nn.Module] | None = None,
    param_init_fn: Callable[[nn.Module], None] | None = None,
    device_id: Device | None = None,
    sync_module_states: bool = False,
    forward_prefetch: bool = False,
    limit_all_gathers: bool = True,
    use_orig_params: bool = False,
    ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    reshard_after_forward: int | None = None,
    world_size: int | None = None,
) -> Plan:
    """What :func:`shard` would do with the same arguments; needs no process group and touches nothing.

    ``print(plan(...))`` shows one line per unit. How many bytes a rank will hold depends on the number of ranks:
    that of ``device_mesh`` or ``process_group``, else ``world_size``, else that of the default process group, else
    ``WORLD_SIZE`` in the environment; the table says on which it rests, and leaves the bytes open without any.
    A hybrid strategy without mesh or groups shards over the devices that this node has.

    Raises what ``shard`` raises, and ValueError for ``world_size`` beside a mesh or a group.
    """
    options = Options(
        process_group=process_group,
        sharding_strategy=sharding_strategy,
        cpu_offload=cpu_offload,
        backward_prefetch=backward_prefetch,
        mixed_precision=mixed_precision,
        param_init_fn=param_init_fn,
        device_id=device_id,
        sync_module_states=sync_module_states,
        forward_prefetch=forward_prefetch,
        limit_all_gathers=limit_all_gathers,
        use_orig_params=use_orig_params,
        device_mesh=device_mesh,
        reshard_after_forward=reshard_after_forward,
    )
    return make_plan(module, options, auto_wrap_policy, ignored_modules, ignored_states, world_size)
