"""Optimizers that are built before sharding where nothing shows it: they train on, or the first step raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.test_stale_optimizers import SHARD, STEPS, WRAPPED, main, trainer
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool, WorkerError

WRAP = "FSDP(model, device_id=CPU, use_orig_params=True)"
REGISTRY = 'MAKERS = {"sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.1)}'
#: Each optimizer holds the parameters from before the model is wrapped.
EARLY = {
    "a registry": tree(
        train=main(f'model = Net()\noptimizer = MAKERS["sgd"](model)\nmodel = {WRAP}{STEPS}', setup=REGISTRY)
    ),
    "a registry in another file, wrapped in a third": tree(
        train=main(
            f'model = Net()\noptimizer = MAKERS["sgd"](model)\nmodel = shard(model){STEPS}',
            "from parallel import shard\nfrom registry import MAKERS\n",
        ),
        registry=f"import torch\n{REGISTRY}\n",
        parallel=SHARD,
    ),
    "by name from the module": tree(
        train=main(
            f'model = Net()\noptimizer = getattr(torch.optim, "SGD")(model.parameters(), lr=0.1)\nmodel = {WRAP}{STEPS}'
        )
    ),
    "a context object": tree(
        train=main(
            f"context = make()\nmodel = context.model\nmodel = {WRAP}\noptimizer = context.optimizer{STEPS}",
            "from types import SimpleNamespace\n",
            setup="def make():\n    net = Net()\n    held = SimpleNamespace(model=net)\n"
            '    setattr(held, "optimizer", MAKERS["sgd"](net))\n    return held\n' + REGISTRY,
        )
    ),
    "a trainer that takes it from a registry": tree(
        train=main("Trainer(Net()).fit()", "from trainer import Trainer\n"),
        trainer=trainer(f"""
def __init__(self, model):
    self.model = model
    self.optimizer = MAKERS["sgd"](model)
    self.wrap()

def wrap(self):
    self.model = {WRAPPED}
""").replace("class Trainer:", f"{REGISTRY}\n\nclass Trainer:"),
    ),
    "a function that is given both": tree(
        train=main(
            f'model = Net()\nmodel, optimizer = prepare(model, MAKERS["sgd"](model)){STEPS}',
            setup=f"def prepare(model, optimizer):\n    model = {WRAP}\n    return model, optimizer\n{REGISTRY}",
        )
    ),
    "blocks of it alone": tree(
        train=main(
            'model = Net()\noptimizer = MAKERS["sgd"](model)\nfor i, block in enumerate(model.blocks):\n'
            f"    model.blocks[i] = FSDP(block, device_id=CPU, use_orig_params=True)\nmodel = {WRAP}{STEPS}",
            setup=REGISTRY,
        )
    ),
}


@pytest.mark.parametrize("files", EARLY.values(), ids=EARLY.keys())
def test_it_trains_the_same_or_raises_at_its_first_step(pool: Pool, tmp_path: Path, files: dict[str, str]) -> None:
    after = rewrite_tree(files)
    assert {found.rule for found in after.findings} & {"FSDP117", "FSDP125"}
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert len(set(before[0])) > 1, "the program trains"
    try:
        trained = train_tree(pool, after.files, tmp_path / "after")
    except WorkerError as error:
        assert "its step would train nothing" in str(error)
    else:
        assert list(differ("losses", before, trained)) == []
