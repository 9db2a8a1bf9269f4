"""The arguments of FSDP1's constructor as one value, checked where FSDP1 checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy

from fsdp_compat.messages import log_once
from fsdp_compat.vocabulary import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy

ProcessGroups: TypeAlias = dist.ProcessGroup | tuple[dist.ProcessGroup, dist.ProcessGroup]
Device: TypeAlias = int | str | torch.device

FREES_AFTER_FORWARD = frozenset({ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD})
HYBRID = frozenset({ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2})
#: The strategies under which a unit stays gathered from its forward to its backward.
KEEP_AFTER_FORWARD = frozenset({ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy._HYBRID_SHARD_ZERO2})


@dataclass(frozen=True, eq=False)
class Options:
    """What one unit is sharded with: FSDP1's constructor arguments less the module, the policy and what is ignored."""

    process_group: ProcessGroups | None = None
    sharding_strategy: ShardingStrategy | None = None
    cpu_offload: CPUOffload | OffloadPolicy | None = None
    backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE
    mixed_precision: MixedPrecision | MixedPrecisionPolicy | None = None
    param_init_fn: Callable[[nn.Module], None] | None = None
    device_id: Device | None = None
    sync_module_states: bool = False
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    use_orig_params: bool = False
    device_mesh: DeviceMesh | None = None
    reshard_after_forward: int | None = None

    @property
    def strategy(self) -> ShardingStrategy:
        return self.sharding_strategy or ShardingStrategy.FULL_SHARD

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def with_unit_arguments(self, arguments: Mapping[str, Any], fqn: str) -> Options:
        """These options with what a policy returned for one module. Raises ValueError for a name it may not set."""
        unknown = sorted(arguments.keys() - self.as_dict().keys())
        if unknown:
            raise ValueError(
                f"the wrapping policy returned {', '.join(unknown)} for the module {fqn!r}, which cannot be set per "
                f"unit. It may return {', '.join(self.as_dict())}."
            )
        options = Options(**{**self.as_dict(), **arguments})
        options.check(is_auto_wrapped=True)
        return options

    def check(self, *, is_auto_wrapped: bool) -> None:
        """Raise ValueError for combinations that FSDP1's constructor refuses, or that contradict each other.

        TypeError for a strategy or an offload that is none.
        """
        if not isinstance(self.sharding_strategy, ShardingStrategy | None):
            raise TypeError(
                f"sharding_strategy takes a ShardingStrategy, such as ShardingStrategy.FULL_SHARD, not "
                f"{self.sharding_strategy!r}"
            )
        if not isinstance(self.cpu_offload, CPUOffload | OffloadPolicy | None):
            raise TypeError(
                f"cpu_offload takes a CPUOffload or an OffloadPolicy, such as CPUOffload(offload_params=True), not "
                f"{self.cpu_offload!r}"
            )
        self._check_reshard_after_forward()
        if self.param_init_fn is not None and not callable(self.param_init_fn):
            raise ValueError(
                f"Expected param_init_fn={self.param_init_fn!r} to be callable: a function of one module that "
                f"allocates and initialises that module's own tensors"
            )
        if self.process_group is not None and self.device_mesh is not None:
            raise ValueError(
                "Cannot pass both process_group and device_mesh at the same time. Please pass only one of them: "
                "they mean the same thing."
            )
        if self.sharding_strategy in HYBRID:
            if self.process_group is None and self.device_mesh is None and not is_auto_wrapped:
                raise ValueError(
                    f"Manual wrapping with {self.sharding_strategy} requires explicit specification of process group "
                    "or device_mesh. Pass process_group=(shard, replicate) or a 2D device_mesh, the same one in "
                    "every call, or wrap with an auto_wrap_policy."
                )
            if self.device_mesh is not None and self.device_mesh.ndim != 2:
                raise ValueError(
                    f"Expected device_mesh to have ndim=2 but got {self.device_mesh.ndim}: {self.sharding_strategy} "
                    "replicates along the first dimension and shards along the second."
                )
            if self.process_group is not None and not _is_pair(self.process_group):
                raise ValueError(
                    "Expected process_group to be passed in as either None or Tuple[dist.ProcessGroup, "
                    f"dist.ProcessGroup] but got {type(self.process_group)}: {self.sharding_strategy} needs "
                    "(shard, replicate)."
                )
        elif isinstance(self.process_group, tuple):
            raise ValueError(f"a tuple of process groups needs a hybrid strategy, not {self.strategy}")

    def _check_reshard_after_forward(self) -> None:
        degree = self.reshard_after_forward
        if degree is None:
            return
        if isinstance(degree, bool):
            raise ValueError(
                f"reshard_after_forward={degree} is already set by sharding_strategy: True is FULL_SHARD or "
                f"HYBRID_SHARD, "
                "False is SHARD_GRAD_OP or _HYBRID_SHARD_ZERO2. Here it takes a number of ranks."
            )
        if degree < 2:
            raise ValueError(f"reshard_after_forward takes a number of ranks of at least 2, not {degree}")
        if self.strategy not in FREES_AFTER_FORWARD:
            raise ValueError(
                f"reshard_after_forward={degree} contradicts {self.strategy}, which keeps the parameters gathered "
                f"after the forward. Use FULL_SHARD or HYBRID_SHARD with it."
            )

    def log_no_ops(self) -> None:
        """Say once per process which arguments have nothing to act on in FSDP2."""
        if self.backward_prefetch is not BackwardPrefetch.BACKWARD_PRE:
            log_once(f"backward_prefetch={self.backward_prefetch} has no effect: FSDP2 always prefetches in backward")
        if not self.limit_all_gathers:
            log_once("limit_all_gathers=False has no effect: FSDP2 frees memory without blocking the CPU")
        if self.use_orig_params:
            log_once("use_orig_params=True has no effect: FSDP2 always keeps the original parameters")


def _is_pair(group: object) -> bool:
    return isinstance(group, tuple) and len(group) == 2 and all(isinstance(part, dist.ProcessGroup) for part in group)


def ignored_parts(
    ignored_modules: Iterable[nn.Module] | None, ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None
) -> tuple[list[nn.Module], list[nn.Parameter]]:
    """What the two arguments name, as (modules, parameters). Raises ValueError where FSDP1 does."""
    if ignored_modules is not None and ignored_states is not None:
        raise ValueError(
            "Cannot pass both ignored_modules and ignored_states at the same time. Please just pass ignored_states, "
            "which takes modules or parameters."
        )
    modules = list(ignored_modules) if ignored_modules is not None else []
    if not all(isinstance(module, nn.Module) for module in modules):
        raise ValueError(f"ignored_modules expects nn.Module list elements but got types {_types(modules)}")
    states: list[Any] = list(ignored_states) if ignored_states is not None else []
    if all(isinstance(state, nn.Parameter) for state in states):
        return modules, states
    if all(isinstance(state, nn.Module) for state in states):
        return states, []
    raise ValueError(
        f"ignored_states expects all nn.Parameter or all nn.Module list elements but got types {_types(states)}. Pass "
        "the parameters of the modules instead of the modules."
    )


def _types(values: Iterable[object]) -> list[type]:
    return sorted({type(value) for value in values}, key=repr)
