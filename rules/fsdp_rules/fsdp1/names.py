"""Which dotted names are FSDP1's, and under which one name the rules know them."""

from __future__ import annotations

from collections.abc import Mapping

FSDP = "FullyShardedDataParallel"

#: Public (and the two commonly used private) names of ``torch.distributed.fsdp`` that belong to FSDP1.
CONFIG_NAMES = frozenset(
    {
        "BackwardPrefetch",
        "CPUOffload",
        "FullOptimStateDictConfig",
        "FullStateDictConfig",
        "LocalOptimStateDictConfig",
        "LocalStateDictConfig",
        "MixedPrecision",
        "OptimStateDictConfig",
        "OptimStateKeyType",
        "ShardedOptimStateDictConfig",
        "ShardedStateDictConfig",
        "ShardingStrategy",
        "StateDictConfig",
        "StateDictSettings",
        "StateDictType",
    }
)
POLICY_NAMES = frozenset(
    {
        "CustomPolicy",
        "ModuleWrapPolicy",
        "_module_wrap_policy",
        "_or_policy",
        "always_wrap_policy",
        "enable_wrap",
        "lambda_auto_wrap_policy",
        "size_based_auto_wrap_policy",
        "transformer_auto_wrap_policy",
        "wrap",
    }
)
CLASS_NAMES = frozenset({FSDP, "ShardedGradScaler"})
FSDP1_NAMES = CLASS_NAMES | CONFIG_NAMES | POLICY_NAMES

#: Names that the same torch package exports for FSDP2; a file that imports them already has an FSDP2 part.
FSDP2_NAMES = frozenset(
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

FSDP_PACKAGE = "torch.distributed.fsdp"
PUBLIC_MODULES = frozenset(
    {
        FSDP_PACKAGE,
        f"{FSDP_PACKAGE}.api",
        f"{FSDP_PACKAGE}.fully_sharded_data_parallel",
        f"{FSDP_PACKAGE}.sharded_grad_scaler",
        f"{FSDP_PACKAGE}.wrap",
    }
)
CHECKPOINT_WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def canonical(dotted: str) -> str | None:
    """FSDP1's own name for a fully dotted name, with what follows it, or None.

    ``torch.distributed.fsdp.api.ShardingStrategy.NO_SHARD`` gives ``ShardingStrategy.NO_SHARD``; whatever else lies
    in ``torch.distributed.fsdp`` gives its path behind that prefix, starting with a dot (``._runtime_utils._reshard``).
    """
    if not dotted.startswith(FSDP_PACKAGE + "."):
        return None
    # A package may be imported as its own file, too.
    rest = [part for part in dotted[len(FSDP_PACKAGE) + 1 :].split(".") if part != "__init__"]
    module = FSDP_PACKAGE
    while rest and f"{module}.{rest[0]}" in PUBLIC_MODULES:
        module = f"{module}.{rest.pop(0)}"
    if not rest or rest[0] in FSDP2_NAMES or rest[0].startswith("_fully_shard"):
        return None
    if rest[0] in FSDP1_NAMES:
        return ".".join(rest)
    return "." + ".".join(rest)


def expand(dotted: str, aliases: Mapping[str, str]) -> str:
    """``dotted`` as written in a file, its first name replaced by what the file's imports bind it to."""
    head, _, tail = dotted.partition(".")
    target = aliases.get(head)
    if target is None:
        return dotted
    return f"{target}.{tail}" if tail else target
