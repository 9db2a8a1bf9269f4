"""Where FSDP1's names come from after a rewrite, to FSDP2 and to the shim."""

from __future__ import annotations

from fsdp_rules.finding import Settings
from tests.rules.helpers import check_rewrites

SHIM = Settings(to="shim")


def test_every_form_of_import_moves_to_the_shim() -> None:
    check_rewrites(
        """
        import torch
        import torch.distributed.fsdp as fsdp
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import MixedPrecision, fully_shard
        from torch.distributed.fsdp.wrap import (
            transformer_auto_wrap_policy,
            wrap,
        )

        def build(model):
            strategy = torch.distributed.fsdp.ShardingStrategy.NO_SHARD
            return FSDP(model, sharding_strategy=strategy, cpu_offload=fsdp.CPUOffload())
        """,
        """
        import fsdp_compat
        import torch
        import torch.distributed.fsdp as fsdp
        from fsdp_compat import FullyShardedDataParallel as FSDP
        from fsdp_compat import MixedPrecision
        from torch.distributed.fsdp import fully_shard
        from fsdp_compat import (
            transformer_auto_wrap_policy,
            wrap,
        )

        def build(model):
            strategy = fsdp_compat.ShardingStrategy.NO_SHARD
            return FSDP(model, sharding_strategy=strategy, cpu_offload=fsdp_compat.CPUOffload())
        """,
        SHIM,
    )


def test_a_lazy_import_stays_in_its_function() -> None:
    check_rewrites(
        """
        def build(model):
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            return FSDP(model)
        """,
        """
        def build(model):
            from torch.distributed.fsdp import fully_shard

            return fully_shard(model)
        """,
    )


def test_a_guarded_import_is_left_alone() -> None:
    check_rewrites(
        """
        try:
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        except ImportError:
            FSDP = None

        def build(model):
            return FSDP(model)
        """,
        """
        from torch.distributed.fsdp import fully_shard
        try:
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        except ImportError:
            FSDP = None

        def build(model):
            return fully_shard(model)
        """,
    )


def test_names_that_a_helper_takes_come_from_the_runtime() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import ShardingStrategy  # by name

        def build(model, name):
            return FSDP(model, sharding_strategy=ShardingStrategy[name])
        """,
        """
        import fsdp_compat
        from fsdp_compat import ShardingStrategy

        def build(model, name):
            return fsdp_compat.shard(model, sharding_strategy=ShardingStrategy[name])
        """,
    )
