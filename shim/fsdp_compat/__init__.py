"""FSDP1's semantics on top of FSDP2's ``fully_shard``: what has no short native spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("fsdp_compat needs torch: pip install 'torch>=2.6'") from error

from fsdp_compat.torch_.versions import FLOOR as _FLOOR
from fsdp_compat.torch_.versions import TORCH as _TORCH

if _TORCH < _FLOOR:
    raise ImportError(f"fsdp_compat needs torch {_FLOOR} or newer, where fully_shard is public; this is {_TORCH}")


from fsdp_compat.face.sharding import plan, shard
from fsdp_compat.memory import MemoryReport, MemoryRow, Usage, memory_report
from fsdp_compat.optimizers.guard import guard_optimizers
from fsdp_compat.optimizers.relink import relink_optimizer
from fsdp_compat.planning.plan import Plan, Unit
from fsdp_compat.planning.sizes import Shards, UnitBytes
from fsdp_compat.preflight.preflight import preflight
from fsdp_compat.preflight.report import PreflightReport, Suspicion
from fsdp_compat.states.optim import optim_state_dict, optim_state_dict_to_load
from fsdp_compat.states.state_dict_type import get_state_dict_type, set_state_dict_type, state_dict_type
from fsdp_compat.step.comm_hooks import register_comm_hook
from fsdp_compat.step.full_params import summon_full_params
from fsdp_compat.step.grads import clip_grad_norm_, no_sync
from fsdp_compat.step.model_group import process_group
from fsdp_compat.step.scaler import ShardedGradScaler
from fsdp_compat.units import fsdp_modules
from fsdp_compat.vocabulary import (
    BackwardPrefetch,
    CPUOffload,
    CustomPolicy,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    ModuleWrapPolicy,
    OptimStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
    _module_wrap_policy,
    _or_policy,
    always_wrap_policy,
    enable_wrap,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
    wrap,
)

if TYPE_CHECKING:
    # Typed code that moves its import goes on type-checking: the interface is FSDP1's own.
    from fsdp_compat.vocabulary import FullyShardedDataParallel
else:
    from fsdp_compat.face.fsdp import FullyShardedDataParallel

FSDP = FullyShardedDataParallel

__all__ = [
    "FSDP",
    "BackwardPrefetch",
    "CPUOffload",
    "CustomPolicy",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "FullyShardedDataParallel",
    "LocalOptimStateDictConfig",
    "LocalStateDictConfig",
    "MemoryReport",
    "MemoryRow",
    "MixedPrecision",
    "ModuleWrapPolicy",
    "OptimStateDictConfig",
    "OptimStateKeyType",
    "Plan",
    "PreflightReport",
    "ShardedGradScaler",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "Shards",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
    "Suspicion",
    "Unit",
    "UnitBytes",
    "Usage",
    "_module_wrap_policy",
    "_or_policy",
    "always_wrap_policy",
    "clip_grad_norm_",
    "enable_wrap",
    "fsdp_modules",
    "get_state_dict_type",
    "guard_optimizers",
    "lambda_auto_wrap_policy",
    "memory_report",
    "no_sync",
    "optim_state_dict",
    "optim_state_dict_to_load",
    "plan",
    "preflight",
    "process_group",
    "register_comm_hook",
    "relink_optimizer",
    "set_state_dict_type",
    "shard",
    "size_based_auto_wrap_policy",
    "state_dict_type",
    "summon_full_params",
    "transformer_auto_wrap_policy",
    "wrap",
]
