"""Lightning's strategy in one file and its module in another: both change, or none does."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

TRAIN = """
import lightning as L
import torch
from lightning.pytorch.strategies import FSDPStrategy
from zoo.layers import Block
from zoo.module import Model

trainer = L.Trainer(devices=8, strategy=FSDPStrategy(auto_wrap_policy={Block}))
module = Model(3)
trainer.fit(module, data)
"""
MODULE = """
import lightning as L
import torch

from .layers import Net


class Model(L.LightningModule):
    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def configure_model(self):
        self.model = Net(self.size)

    def training_step(self, batch):
        return self.model(batch)
"""
LAYERS = """
import torch


class Block(torch.nn.Linear):
    pass


class Net(torch.nn.Module):
    pass
"""


def run(
    train: str = TRAIN, module: str = MODULE, settings: Settings | None = None, more: dict[str, str] | None = None
) -> dict[str, str]:
    """The files as they are afterwards, and the messages about them."""
    before = {
        "train.py": train,
        "zoo/module.py": module,
        "zoo/layers.py": LAYERS,
        "zoo/__init__.py": "",
        **(more or {}),
    }
    results = rewrite_tree({path: text.encode() for path, text in before.items()}, settings)
    found: dict[str, str] = {}
    said = []
    for path, text in before.items():
        result = results.get(path, Unchanged())
        assert isinstance(result, Changed | Unchanged), result
        found[path] = result.source.decode() if isinstance(result, Changed) else text
        said += [f"{one.level.value} {one.message}" for one in result.findings if one.rule == "FSDP556"]
    return {**found, "said": "\n".join(said)}


def test_both_files_change() -> None:
    after = run()
    assert "strategy=ModelParallelStrategy(" in after["train.py"]
    assert "FSDPStrategy" not in after["train.py"]
    assert after["zoo/module.py"] == MODULE.replace(
        "import torch\n\nfrom .layers import Net\n",
        "import torch\nfrom torch.distributed.fsdp import fully_shard\nfrom zoo.layers import Block\n\n"
        "from .layers import Net\n",
    ).replace(
        "        self.model = Net(self.size)\n",
        "        self.model = Net(self.size)\n"
        "        if self.device_mesh is not None:\n"
        '            mesh = self.device_mesh["data_parallel"]\n'
        "            for module in reversed(list(self.model.modules())):\n"
        "                if isinstance(module, Block):\n"
        "                    fully_shard(module, mesh=mesh)\n"
        "            fully_shard(self.model, mesh=mesh)\n",
    )
    assert "assumes code outside Model uses its model" in after["said"]
    assert "configure_model shards self.model for the strategy of train.py" in after["said"]
    assert "manual" not in after["said"]
    again = run(after["train.py"], after["zoo/module.py"])
    assert {path: again[path] for path in ("train.py", "zoo/module.py")} == {
        path: after[path] for path in ("train.py", "zoo/module.py")
    }


def test_what_the_module_calls_otherwise_and_dtypes_are_spelled_as_it_does() -> None:
    half = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    train = TRAIN.replace("{Block}", f"{{Block}}, mixed_precision={half}, sharding_strategy='SHARD_GRAD_OP'")
    train = train.replace("import torch\n", "import torch\nfrom torch.distributed.fsdp import MixedPrecision\n")
    module = MODULE.replace("import torch\n", "import torch as t\n").replace("import Net", "import Block as B, Net")
    text = run(train, module)["zoo/module.py"]
    assert "mp_policy = MixedPrecisionPolicy(param_dtype=t.bfloat16, reduce_dtype=t.float32)" in text
    assert "isinstance(module, B)" in text
    assert "fully_shard(self.model, mesh=mesh, reshard_after_forward=False, mp_policy=mp_policy)" in text
    assert "import Block" not in text.replace("import Block as B", "")


def test_a_precision_of_the_trainer_reaches_the_module() -> None:
    text = run(TRAIN.replace("devices=8", "devices=8, precision='bf16-mixed'"))["zoo/module.py"]
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)" in text


def test_the_package_gives_the_module_on() -> None:
    train = TRAIN.replace("from zoo.module", "from zoo")
    after = run(train, more={"zoo/__init__.py": "from .module import Model\n"})
    assert "ModelParallelStrategy(" in after["train.py"]
    assert "fully_shard(self.model" in after["zoo/module.py"]


@pytest.mark.parametrize(
    ("where", "old", "new", "said"),
    [
        (
            "train",
            "from zoo.layers import Block",
            "class Block: pass",
            "Block cannot be imported by configure_model in",
        ),
        ("train", "from zoo.layers import Block", "from .zoo.layers import Block", "configure_model in zoo/module.py"),
        ("train", "data)", "data)\nprint(module.model.head)", "line 11 reads module.model, which has shards"),
        ("train", "from zoo.module import Model", "from other import Model", "no file in the tree defines Model"),
        ("train", "devices=8", "devices=8, precision='16-mixed'", "no precision 16-mixed"),
        ("train", "{Block}", "{Block}, cpu_offload=True", "which cpu_offload refuses"),
        ("module", "configure_model", "setup", "no file in the tree defines Model with a configure"),
        ("module", "self.size = size", "self.head = torch.nn.Linear(2, 2)", "self.head of __init__ may have"),
        ("module", "Model(L.LightningModule):", "Model(L.LightningModule):  # fsdp-migrate: ignore", "switched off"),
        ("module", "        return self.model(batch)", "        return run(self.model)", "does not follow"),
        ("module", "    def training_step", "class Other(Model):\n    def training_step", "Other extends Model"),
    ],
)
def test_both_files_are_kept(where: str, old: str, new: str, said: str) -> None:
    train, module = (TRAIN.replace(old, new), MODULE) if where == "train" else (TRAIN, MODULE.replace(old, new))
    assert (train, module) != (TRAIN, MODULE)
    after = run(train, module)
    assert after["zoo/module.py"] == module
    assert "strategy=FSDPStrategy(auto_wrap_policy" in after["train.py"]
    assert said in after["said"]


def test_a_rule_that_is_switched_off_keeps_both() -> None:
    after = run(settings=Settings(ignore=("FSDP556",)))
    assert (after["train.py"], after["zoo/module.py"]) == (TRAIN, MODULE)


def test_two_strategies_of_one_module_have_to_be_alike() -> None:
    other = TRAIN.replace("{Block}", "{Block}, sharding_strategy='SHARD_GRAD_OP'")
    after = run(more={"finetune.py": other})
    assert after["zoo/module.py"] == MODULE
    assert "several strategies train Model" in after["said"]
    alike = run(more={"finetune.py": TRAIN})
    assert alike["zoo/module.py"].count("fully_shard(self.model") == 1
    assert all("ModelParallelStrategy(" in alike[path] for path in ("train.py", "finetune.py"))


def test_a_module_that_no_strategy_shards_is_passed_over() -> None:
    after = run("import lightning as L\nfrom zoo.module import Model\nL.Trainer(strategy='ddp').fit(Model(3))\n")
    assert (after["zoo/module.py"], after["said"]) == (MODULE, "")
