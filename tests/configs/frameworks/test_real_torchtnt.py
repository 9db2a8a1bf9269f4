"""Training with torchtnt's strategies before and after a rewrite. The release 0.2.4 has no FSDP2Strategy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pool import Pool
from tests.rules.helpers import rewrite

prepare = pytest.importorskip("torchtnt.utils.prepare_module", reason="needs torchtnt's main branch")
if not hasattr(prepare, "FSDP2Strategy"):
    pytest.skip("this torchtnt has no FSDP2Strategy", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")
HEAD = """
import functools
import torch
from torch.distributed.fsdp import CPUOffload, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy
from torchtnt.utils.prepare_module import FSDPStrategy

strategy = FSDPStrategy(
"""


def train(rank: int, world_size: int, source: str) -> dict[str, Any]:
    """Losses of five steps of a model that torchtnt prepares."""
    import torch
    from torchtnt.utils.prepare_module import prepare_module

    from tests.configs.frameworks.accelerate_worker import Block, Net

    made: dict[str, Any] = {"Block": Block}
    exec(compile(source, "strategy.py", "exec"), made)
    torch.manual_seed(7)
    model: Any = prepare_module(Net(0.0), torch.device("cpu"), strategy=made["strategy"])
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    losses = []
    for _ in range(5):
        loss = model(torch.randn(4, 8), torch.randn(4, 4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "class": type(model).__name__}


@pytest.mark.parametrize(
    "arguments",
    [
        "auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True",
        "auto_wrap_policy=ModuleWrapPolicy([Block]), sharding_strategy='SHARD_GRAD_OP', limit_all_gathers=True",
        "auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})",
        "auto_wrap_policy=ModuleWrapPolicy({Block}), cpu_offload=CPUOffload(offload_params=False)",
    ],
)
def test_losses_are_equal_before_and_after(arguments: str, pool: Pool) -> None:
    before = f"{HEAD}    {arguments},\n)\n"
    after = rewrite(before).source.decode()  # type: ignore[union-attr]
    first, second = (pool.run(train, 2, program)[0] for program in (before, after))
    assert (first["class"], second["class"]) == ("FullyShardedDataParallel", "FSDPNet")
    assert first["losses"] == second["losses"]
