"""Programs that wrap their model with FSDP1 or with DistributedDataParallel, trained before and after with either."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

TRAIN = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms._comm_hooks.default_hooks import DefaultState, reduce_scatter_hook
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType
    from torch.nn.parallel import DistributedDataParallel as DDP

    from common import CPU, Net, data, finish, note, start
    from steps import accumulate

    ENGINE = "KIND"
    CALLS = []


    def counted(state, bucket):
        CALLS.append(1)
        return allreduce_hook(state, bucket)


    def wrap(engine, model):
        if engine == "torch_fsdp":
            model = FSDP(model, device_id=CPU, use_orig_params=True)
            state, hook = DefaultState(dist.group.WORLD), reduce_scatter_hook
        else:
            model = DDP(model)
            state, hook = None, counted
        if engine in ["torch_fsdp", "torch_ddp"]:
            model.register_comm_hook(state, hook)
        return model


    def state_of(model, ddp, fsdp):
        if ddp and fsdp:
            FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
            state = model.state_dict()
        else:
            state = model.state_dict()
        return state


    def main():
        rank = start()
        model = wrap(ENGINE, Net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        torch.manual_seed(10 + rank)
        for _ in range(3):
            optimizer.zero_grad()
            note(accumulate(model, [data(), data()]))
            optimizer.step()
        note(len(CALLS))
        state = state_of(model, True, ENGINE == "torch_fsdp")
        for name, value in state.items():
            note(len(name))
            note(value.sum())
        model.load_state_dict({name: value * 0.5 for name, value in state.items()})
        note(model(data()).sum())
        # DDP's reducer may wait for ever where it outlives its process group.
        del model, optimizer
        finish(sys.argv[1])


    if __name__ == "__main__":
        main()
"""
STEPS = """
    def accumulate(model, batches):
        *first, last = batches
        for batch in first:
            if hasattr(model, "no_sync"):
                with model.no_sync():
                    model(batch).square().mean().backward()
            else:
                model(batch).square().mean().backward()
        loss = model(last).square().mean()
        loss.backward()
        return loss
"""


@pytest.mark.parametrize("kind", ["torch_fsdp", "torch_ddp"])
def test_either_wrapper_trains_and_saves_the_same(pool: Pool, tmp_path: Path, kind: str) -> None:
    files = tree(train=TRAIN.replace("KIND", kind), steps=STEPS)
    done = rewrite_tree(files)
    assert done.manual() == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert list(differ(kind, before, train_tree(pool, done.files, tmp_path / "after"))) == []
