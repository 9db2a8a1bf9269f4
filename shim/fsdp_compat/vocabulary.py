"""FSDP1's enums, configs and policies: torch's own where torch has them, equal ones of ours where it has not.

No other file of this package imports them from torch, which deprecates FSDP1 and may drop it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        CPUOffload,
        FullOptimStateDictConfig,
        FullStateDictConfig,
        LocalOptimStateDictConfig,
        LocalStateDictConfig,
        MixedPrecision,
        OptimStateDictConfig,
        OptimStateKeyType,
        ShardedOptimStateDictConfig,
        ShardedStateDictConfig,
        ShardingStrategy,
        StateDictConfig,
        StateDictSettings,
        StateDictType,
    )
    from torch.distributed.fsdp import FullyShardedDataParallel as FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import (
        CustomPolicy,
        ModuleWrapPolicy,
        _module_wrap_policy,
        _or_policy,
        always_wrap_policy,
        enable_wrap,
        lambda_auto_wrap_policy,
        size_based_auto_wrap_policy,
        transformer_auto_wrap_policy,
        wrap,
    )
else:
    try:
        from torch.distributed.fsdp import (
            BackwardPrefetch,
            CPUOffload,
            FullOptimStateDictConfig,
            FullStateDictConfig,
            LocalOptimStateDictConfig,
            LocalStateDictConfig,
            MixedPrecision,
            OptimStateDictConfig,
            OptimStateKeyType,
            ShardedOptimStateDictConfig,
            ShardedStateDictConfig,
            ShardingStrategy,
            StateDictConfig,
            StateDictSettings,
            StateDictType,
        )
    except ImportError:
        from fsdp_compat.own_vocabulary import (
            BackwardPrefetch,
            CPUOffload,
            FullOptimStateDictConfig,
            FullStateDictConfig,
            LocalOptimStateDictConfig,
            LocalStateDictConfig,
            MixedPrecision,
            OptimStateDictConfig,
            OptimStateKeyType,
            ShardedOptimStateDictConfig,
            ShardedStateDictConfig,
            ShardingStrategy,
            StateDictConfig,
            StateDictSettings,
            StateDictType,
        )
    try:
        from torch.distributed.fsdp.wrap import (
            CustomPolicy,
            ModuleWrapPolicy,
            _module_wrap_policy,
            _or_policy,
            always_wrap_policy,
            enable_wrap,
            lambda_auto_wrap_policy,
            size_based_auto_wrap_policy,
            transformer_auto_wrap_policy,
            wrap,
        )
    except ImportError:
        from fsdp_compat.own_vocabulary import (
            CustomPolicy,
            ModuleWrapPolicy,
            _module_wrap_policy,
            _or_policy,
            always_wrap_policy,
            enable_wrap,
            lambda_auto_wrap_policy,
            size_based_auto_wrap_policy,
            transformer_auto_wrap_policy,
            wrap,
        )

__all__ = [
    "BackwardPrefetch",
    "CPUOffload",
    "CustomPolicy",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "LocalOptimStateDictConfig",
    "LocalStateDictConfig",
    "MixedPrecision",
    "ModuleWrapPolicy",
    "OptimStateDictConfig",
    "OptimStateKeyType",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
    "_module_wrap_policy",
    "_or_policy",
    "always_wrap_policy",
    "enable_wrap",
    "lambda_auto_wrap_policy",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
    "wrap",
]
