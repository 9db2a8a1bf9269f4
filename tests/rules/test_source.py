"""What a file knows about its own names."""

from __future__ import annotations

from tests.rules.helpers import check_rewrites


def test_a_branch_for_another_class_holds_no_sharded_model() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.nn.parallel import DistributedDataParallel as DDP

        def step(model):
            model = FSDP(model)
            if isinstance(model, FSDP):
                model.clip_grad_norm_(1.0)
            elif isinstance(model, DDP):
                model.module.clip(1.0)
            else:
                model.module.other()
        """,
        """
        import torch
        from torch.distributed.fsdp import FSDPModule, fully_shard
        from torch.nn.parallel import DistributedDataParallel as DDP

        def step(model):
            fully_shard(model)
            if isinstance(model, FSDPModule):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            elif isinstance(model, DDP):
                model.module.clip(1.0)
            else:
                model.module.other()
        """,
    )
