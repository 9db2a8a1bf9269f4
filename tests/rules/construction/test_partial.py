"""FSDP115: a constructor with some of its arguments bound in advance."""

from __future__ import annotations

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_findings, check_noop, check_rewrites


def test_partials_of_other_things_are_left_alone() -> None:
    check_noop("import functools\n\nmake = functools.partial(Net, 3)\n")


def test_a_function_named_partial_is_not_functools() -> None:
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from tools import partial

        make = partial(FSDP, device_id=0)
        """
    check_findings(source, {("FSDP901", "manual")})


def test_arguments_and_their_configurations_stay() -> None:
    check_rewrites(
        """
        import functools
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

        make = functools.partial(
            FullyShardedDataParallel,
            sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # ZeRO-2
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        )
        """,
        """
        import functools
        import fsdp_compat
        import torch
        from fsdp_compat import MixedPrecision, ShardingStrategy

        make = functools.partial(
            fsdp_compat.shard,
            sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # ZeRO-2
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        )
        """,
    )


def test_without_helpers_nothing_is_rewritten() -> None:
    source = """
        import functools
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        make = functools.partial(FSDP, device_id=0)
        """
    check_findings(source, {("FSDP115", "manual")}, Settings(helpers="never"))
