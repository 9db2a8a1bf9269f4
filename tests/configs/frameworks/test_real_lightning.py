"""Training under Lightning's FSDPStrategy, and under what the rewrite makes of the same program."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import types
from typing import Any

import pytest

from fsdp_rules.verdict.result import Changed
from tests.pool import Pool
from tests.rules.helpers import findings, rewrite, rewrite_tree

pytest.importorskip("lightning", reason="make frameworks installs lightning")
pytestmark = pytest.mark.filterwarnings("default")

PROGRAM = textwrap.dedent(
    """
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.strategies import FSDPStrategy
    from torch.distributed.fsdp import MixedPrecision

    from tests.configs.frameworks.accelerate_worker import Block, Net


    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = None
            self.losses = []

        def configure_model(self):
            if self.model is not None:
                return
            torch.manual_seed(7)
            self.model = Net(0.0)

        def training_step(self, batch, index):
            loss = self.model(*batch)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)


    def run():
        strategy = FSDPStrategy()
        trainer = pl.Trainer(
            accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False,
        )
        torch.manual_seed(3)
        rows = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randn(16, 4))
        module = Model()
        trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=2))
        return trainer, module
    """
)


def rewritten(program: str) -> str:
    result = rewrite(program)
    assert isinstance(result, Changed), result
    return result.source.decode()


def rewritten_files(files: dict[str, str]) -> dict[str, str]:
    results = rewrite_tree({path: text.encode() for path, text in files.items()})
    assert all(isinstance(one, Changed) for one in results.values())
    return {path: one.source.decode() for path, one in results.items() if isinstance(one, Changed)}


def train(rank: int, world_size: int, program: str, module_of: str = "") -> dict[str, Any]:
    """Losses of two epochs. Lightning refuses FSDP1 on a CPU; its check and the device that it gives are put aside."""
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)})
    os.environ.update({"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    os.environ.update({"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"})
    import lightning.pytorch as pl
    import torch
    from torch import distributed

    class OnCpu(distributed.fsdp.FullyShardedDataParallel):
        def __init__(self, *args: Any, device_id: object = None, **options: Any) -> None:
            super().__init__(*args, device_id=torch.device("cpu"), **options)

    class Allowed(pl.strategies.FSDPStrategy):
        """Lightning's check looks for the class itself."""

    first_class, first_strategy = distributed.fsdp.FullyShardedDataParallel, pl.strategies.FSDPStrategy
    distributed.fsdp.FullyShardedDataParallel = OnCpu  # type: ignore[misc]
    pl.strategies.FSDPStrategy = Allowed  # type: ignore[misc]
    names: dict[str, Any] = {"__name__": "program"}
    try:
        if module_of:
            other = sys.modules["module_of"] = types.ModuleType("module_of")
            exec(compile(module_of, "module_of.py", "exec"), vars(other))
        exec(compile(program, "program.py", "exec"), names)
        trainer, module = names["run"]()
    finally:
        sys.modules.pop("module_of", None)
        distributed.fsdp.FullyShardedDataParallel = first_class  # type: ignore[misc]
        pl.strategies.FSDPStrategy = first_strategy  # type: ignore[misc]
    return {
        "losses": module.losses,
        "class": type(trainer.strategy.model).__name__,
        "inner": type(module.model).__name__,
        "held": sum(getattr(one, "_local_tensor", one).numel() for one in module.parameters()),
    }


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        ("", {}),
        ("auto_wrap_policy={Block}", {}),
        ("auto_wrap_policy={Block, torch.nn.Linear}, limit_all_gathers=True", {}),
        ("auto_wrap_policy={Block}, sharding_strategy='SHARD_GRAD_OP', state_dict_type='sharded'", {}),
        ("auto_wrap_policy={Block}, activation_checkpointing_policy={Block}", {}),
        ("activation_checkpointing=[Block]", {"Net(0.0)": "Net(0.5)"}),
        ("auto_wrap_policy={Block}", {"self.model(*batch)": "self.model.forward(*batch)"}),
        ("auto_wrap_policy={Block}", {"devices=2": 'devices=2, num_nodes=1, precision="bf16-true"'}),
    ],
    ids=["one unit", "units", "inner units", "grad op", "recomputed", "recomputed dropout", "method", "bf16-true"],
)
def test_losses_are_equal(arguments: str, others: dict[str, str], pool: Pool) -> None:
    before = PROGRAM.replace("FSDPStrategy()", f"FSDPStrategy({arguments})")
    for old, new in others.items():
        before = before.replace(old, new)
    after = rewritten(before)
    assert "FSDPStrategy" not in after
    first, second = (pool.run(train, 2, program)[0] for program in (before, after))
    assert (first["class"], second["class"]) == ("OnCpu", "Model")
    assert (first["inner"], second["inner"]) == ("Net", "FSDPNet")
    assert len(first["losses"]) == 8
    assert first["losses"] == second["losses"]


def test_policies_of_half_precision_compute_as_fsdp1_does(pool: Pool) -> None:
    half = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    before = PROGRAM.replace("FSDPStrategy()", f"FSDPStrategy(auto_wrap_policy={{Block}}, mixed_precision={half})")
    first, second = (pool.run(train, 2, program)[0] for program in (before, rewritten(before)))
    assert first["losses"] == second["losses"]


def test_the_sizes_that_nobody_writes_shard_nothing_on_one_machine(pool: Pool) -> None:
    """Why the rewrite writes them out: "auto" is one rank of data parallelism per machine."""
    program = rewritten(PROGRAM.replace("FSDPStrategy()", "FSDPStrategy(auto_wrap_policy={Block})"))
    sizes = re.compile(r"data_parallel_size=2,\s*tensor_parallel_size=1,\s*")
    assert sizes.search(program)
    written, unwritten = (pool.run(train, 2, one) for one in (program, sizes.sub("", program)))
    assert [one["held"] for one in unwritten] == [sum(one["held"] for one in written)] * 2
    assert unwritten[0]["losses"] == unwritten[1]["losses"], "both ranks have the same data"
    assert written[0]["losses"] != written[1]["losses"]


def test_accumulated_gradients_are_added_in_another_order(pool: Pool) -> None:
    before = PROGRAM.replace("FSDPStrategy()", "FSDPStrategy(auto_wrap_policy={Block})")
    before = before.replace("devices=2", "devices=2, accumulate_grad_batches=2")
    assert any("in a different order" in one.message for one in findings(before))
    first, second = (pool.run(train, 2, program)[0]["losses"] for program in (before, rewritten(before)))
    # Two sums of four numbers each in float32, of which one is rounded otherwise.
    assert first == pytest.approx(second, rel=1e-6)


@pytest.mark.parametrize(
    "arguments",
    ["auto_wrap_policy={Block}", "auto_wrap_policy={Block}, sharding_strategy='SHARD_GRAD_OP', mixed_precision=HALF"],
    ids=["units", "grad op and half precision"],
)
def test_losses_are_equal_where_the_module_is_in_another_file(arguments: str, pool: Pool) -> None:
    head, _, run = PROGRAM.partition("def run():")
    imports, _, module = head.partition("class Model")
    half = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    program = f"{imports}\nfrom module_of import Model\n\ndef run():{run}"
    program = program.replace("FSDPStrategy()", f"FSDPStrategy({arguments.replace('HALF', half)})")
    nets = (
        "import lightning.pytorch as pl\nimport torch\n\nfrom tests.configs.frameworks.accelerate_worker import Net\n"
    )
    files = {"program.py": program, "module_of.py": f"{nets}\n\nclass Model{module}"}
    after = rewritten_files(files)
    assert "FSDPStrategy" not in after["program.py"]
    assert "fully_shard" not in after["program.py"]
    first, second = (pool.run(train, 2, one["program.py"], one["module_of.py"])[0] for one in (files, after))
    assert (first["class"], second["class"]) == ("OnCpu", "Model")
    assert (first["inner"], second["inner"]) == ("Net", "FSDPNet")
    assert len(first["losses"]) == 8
    assert first["losses"] == second["losses"]
