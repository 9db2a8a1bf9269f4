"""Training under Lightning's FSDPStrategy, and under what its finding says to write in its place."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.pool import Pool
from tests.rules.helpers import findings

pytest.importorskip("lightning", reason="make frameworks installs lightning")
pytestmark = pytest.mark.filterwarnings("default")


def train(rank: int, world_size: int, second: bool, reshard: bool) -> dict[str, Any]:
    """Losses of two epochs. Lightning refuses FSDP1 on a CPU; its check and the device that it gives are put aside."""
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)})
    os.environ.update({"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    os.environ.update({"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"})
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    from tests.configs.frameworks.accelerate_worker import Block, Net

    class OnCpu(distributed.fsdp.FullyShardedDataParallel):
        def __init__(self, *args: Any, device_id: object = None, **options: Any) -> None:
            super().__init__(*args, device_id=torch.device("cpu"), **options)

    class Allowed(FSDPStrategy):
        """Lightning's check looks for the class itself."""

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model: Any = None
            self.losses: list[float] = []

        def configure_model(self) -> None:
            if self.model is not None:
                return
            torch.manual_seed(7)
            self.model = Net(0.0)
            if second:
                options: dict[str, Any] = {"mesh": self.device_mesh["data_parallel"], "reshard_after_forward": reshard}
                for module in self.modules():
                    if isinstance(module, Block):
                        fully_shard(module, **options)
                fully_shard(self.model, **options)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.model(*batch)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    strategy: Any = ModelParallelStrategy(world_size, 1, save_distributed_checkpoint=False)
    first_class = distributed.fsdp.FullyShardedDataParallel
    if not second:
        distributed.fsdp.FullyShardedDataParallel = OnCpu  # type: ignore[misc]
        strategy = Allowed(auto_wrap_policy={Block}, sharding_strategy="FULL_SHARD" if reshard else "SHARD_GRAD_OP")
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(accelerator="cpu", devices=world_size, strategy=strategy, max_epochs=2, logger=False, **quiet)
    torch.manual_seed(3)
    rows = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randn(16, 4))
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=2))
    distributed.fsdp.FullyShardedDataParallel = first_class  # type: ignore[misc]
    return {
        "losses": module.losses,
        "class": type(trainer.strategy.model).__name__,
        "inner": type(module.model).__name__,
    }


@pytest.mark.parametrize(("strategy", "reshard"), [("FULL_SHARD", True), ("SHARD_GRAD_OP", False)])
def test_losses_are_equal_with_the_code_that_the_finding_says(strategy: str, reshard: bool, pool: Pool) -> None:
    first, second = (pool.run(train, 2, kind, reshard)[0] for kind in (False, True))
    assert first["class"] == "OnCpu"
    assert second["inner"] == "FSDPNet"
    assert len(first["losses"]) == 8
    assert first["losses"] == second["losses"]
    call = f"FSDPStrategy(auto_wrap_policy={{Block}}, sharding_strategy='{strategy}')"
    (finding,) = findings(f"from lightning.pytorch.strategies import FSDPStrategy\ns = {call}\n")
    assert ("reshard_after_forward=False" in finding.advice) is not reshard
    assert "fully_shard(self.model" in finding.advice
