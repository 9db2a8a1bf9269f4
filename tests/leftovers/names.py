"""What belongs to FSDP1, by name: written from torch's own sources, not from the rules that are to be checked."""

from __future__ import annotations

import re

PACKAGE = "torch.distributed.fsdp"
#: The public modules of the package that hold FSDP1, one level below it.
MODULES = frozenset({"api", "fully_sharded_data_parallel", "sharded_grad_scaler", "wrap"})
#: What the same package exports for FSDP2.
FSDP2 = frozenset(
    {
        "CPUOffloadPolicy",
        "DataParallelMeshDims",
        "FSDPModule",
        "MixedPrecisionPolicy",
        "OffloadPolicy",
        "UnshardHandle",
        "fully_shard",
        "register_fsdp_forward_method",
        "share_comm_ctx",
    }
)
#: Functions elsewhere in torch that only work on what FSDP1 makes.
ELSEWHERE = frozenset(
    {
        "torch.distributed.checkpoint.load_sharded_optimizer_state_dict",
        "torch.distributed.checkpoint.optimizer.load_sharded_optimizer_state_dict",
    }
)
#: Dataclasses, enumerations and wrap policies: values that do nothing until a wrapped model is made of them.
VALUES = re.compile(
    r"(BackwardPrefetch|CPUOffload|MixedPrecision|ShardingStrategy|StateDictType|OptimStateKeyType|StateDictSettings"
    r"|\w*StateDictConfig|CustomPolicy|ModuleWrapPolicy|_?\w+_policy)(\.\w+)*"
)

#: What ``from torch.distributed.fsdp import *`` brings.
STARRED = re.compile(
    r"FullyShardedDataParallel|BackwardPrefetch|CPUOffload|MixedPrecision|ShardingStrategy|\w*StateDict\w+"
)

#: Methods of the wrapper that no other class of torch has.
METHODS = frozenset(
    {
        "check_is_root",
        "flatten_sharded_optim_state_dict",
        "fsdp_modules",
        "full_optim_state_dict",
        "get_state_dict_type",
        "optim_state_dict",
        "optim_state_dict_to_load",
        "rekey_optim_state_dict",
        "scatter_full_optim_state_dict",
        "set_state_dict_type",
        "shard_full_optim_state_dict",
        "sharded_optim_state_dict",
        "state_dict_type",
        "summon_full_params",
    }
)
#: Methods of the wrapper that other objects have too: wrappers, trainers, modules of functions.
SHARED_METHODS = frozenset({"clip_grad_norm_", "no_sync", "register_comm_hook"})
#: Objects of other libraries with methods of those names, by what people call them.
OTHERS = re.compile(
    r"^(self|cls|super)$|accelerat|fabric|engine|strategy|trainer|optim|scaler|plugin|clip|ddp|utils?$", re.IGNORECASE
)

#: Attributes of the wrapper and of what hangs on it.
ATTRIBUTES = frozenset(
    {
        "_all_fsdp_states",
        "_all_handles",
        "_exec_order_data",
        "_flat_param",
        "_fsdp_wrapped_module",
        "_fully_sharded_module_to_handle",
        "_handle",
        "_handles",
        "_is_flat_param",
        "_post_backward_stream",
        "_shard_param_infos",
        "_streams",
        "_unshard_stream",
        "flat_param",
    }
)
#: Texts that a program compares names with.
STRINGS = re.compile(r"_fsdp_wrapped_module|_flat_param\b|^FullyShardedDataParallel$|^FSDP$")


def fsdp1(dotted: str) -> str | None:
    """What is left of a full dotted name behind the package's public modules if it is FSDP1's, else None."""
    if dotted in ELSEWHERE:
        return dotted.rpartition(".")[2]
    if not dotted.startswith(PACKAGE + "."):
        return None
    parts = dotted[len(PACKAGE) + 1 :].split(".")
    if len(parts) > 1 and parts[0] in MODULES:
        parts.pop(0)
    if parts[0] in FSDP2 or parts[0].startswith("_fully_shard") or parts[0] in MODULES - {"wrap"}:
        return None
    return ".".join(parts)
