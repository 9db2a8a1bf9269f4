"""Optimizers that are built before sharding where nothing shows it: they train on, or the first step raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
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
        assert "build it afterwards" in str(error) or "its step would train nothing" in str(error)
    else:
        assert list(differ("losses", before, trained)) == []


#: The same programs with what must not be stopped: each optimizer holds parameters that are still in use.
LATE = {
    "a registry": tree(
        train=main(
            f'model = Net()\nmodel = shard(model)\noptimizer = MAKERS["sgd"](model){STEPS}',
            "from registry import MAKERS\nfrom parallel import shard\n",
        ),
        registry=f"import torch\n{REGISTRY}\n",
        parallel=SHARD,
    ),
    "units that are wrapped first": tree(
        train=main(
            "model = make()\nfor i, block in enumerate(model.blocks):\n"
            f"    model.blocks[i] = FSDP(block, device_id=CPU, use_orig_params=True)\nmodel = {WRAP}\n"
            f'optimizer = MAKERS["sgd"](model){STEPS}',
            "from registry import MAKERS, make\n",
        ),
        registry=f"import torch\nfrom common import Net\n{REGISTRY}\ndef make():\n    return Net()\n",
    ),
    "a teacher, and a head that is not sharded": tree(
        train=main(
            "import copy\nmodel = make()\nteacher = copy.deepcopy(model)\nhead = torch.nn.Linear(3, 3)\n"
            f'model = {WRAP}\noptimizer = MAKERS["sgd"](model)\nother = MAKERS["sgd"](head)\n'
            """for step in range(4):
    optimizer.zero_grad()
    other.zero_grad()
    x = data()
    loss = (head(model(x)) - teacher(x).detach()).square().mean()
    loss.backward()
    torch.distributed.all_reduce(head.weight.grad)
    torch.distributed.all_reduce(head.bias.grad)
    optimizer.step()
    other.step()
    note(loss)
""",
            "from registry import MAKERS, make\n",
        ),
        registry=f"import torch\nfrom common import Net\n{REGISTRY}\ndef make():\n    return Net()\n",
    ),
    "frozen and ignored parameters": tree(
        train=main(
            "model = make()\nmodel.embed.requires_grad_(False)\n"
            "model = FSDP(model, device_id=CPU, use_orig_params=True, ignored_states=list(model.head.parameters()))\n"
            'optimizer = MAKERS["sgd"](model)\n'
            """for step in range(4):
    optimizer.zero_grad()
    loss = model(data()).square().mean()
    loss.backward()
    for parameter in model.parameters():
        if parameter.shape == (3, 6) or parameter.shape == (3,):
            torch.distributed.all_reduce(parameter.grad)
    optimizer.step()
    note(loss)
""",
            "from registry import MAKERS, make\n",
        ),
        registry=f"import torch\nfrom common import Net\n{REGISTRY}\ndef make():\n    return Net()\n",
    ),
    "two models that train in turns": tree(
        train=main(
            "model = make()\ncritic = make()\n"
            f"model = {WRAP}\ncritic = {WRAP.replace('model', 'critic')}\n"
            'optimizer, other = MAKERS["sgd"](model), MAKERS["sgd"](critic)\n'
            """for step in range(4):
    optimizer.zero_grad()
    other.zero_grad()
    x = data()
    with torch.no_grad():
        seen = critic(x)
    loss = (model(x) - seen).square().mean()
    loss.backward()
    optimizer.step()
    second = (critic(x) - model(x).detach()).square().mean()
    second.backward()
    other.step()
    note(loss)
    note(second)
""",
            "from registry import MAKERS, make\n",
        ),
        registry=f"import torch\nfrom common import Net\n{REGISTRY}\ndef make():\n    return Net()\n",
    ),
}


ELSEWHERE = 'import torch\nMORE = {"adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.1)}\n'


@pytest.mark.parametrize("files", LATE.values(), ids=LATE.keys())
def test_one_that_is_built_afterwards_trains_the_same_under_the_guard(
    pool: Pool, tmp_path: Path, files: dict[str, str]
) -> None:
    # Somewhere else in the tree an optimizer is built of which nothing is known, so that every wrap is guarded.
    files = {**files, "elsewhere.py": ELSEWHERE, "registry.py": f"import elsewhere\n{files['registry.py']}"}
    after = rewrite_tree(files, Settings(torch=(2, 7)))
    assert any("is_replaced" in text for text in after.files.values())
    assert not any("fsdp_compat.guard_optimizers" in text for text in after.files.values())
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert len(set(before[0])) > 1, "the program trains"
    assert list(differ("losses", before, train_tree(pool, after.files, tmp_path / "after"))) == []


TOGETHER = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU

def shard(model, optimizer, opt=None):
    model = FSDP(model, device_id=CPU, use_orig_params=True)
    return model, optimizer
"""
IMPORTED = "from registry import MAKERS\nfrom parallel import shard\n"
OTHER = "torch.optim.SGD(model.parameters(), lr=0.1)"
MADE = 'model = Net()\nheld = MAKERS["sgd"](model)\n'
REGISTERED = {"registry": f"import torch\n{REGISTRY}\n", "parallel": TOGETHER}


@pytest.mark.parametrize(
    ("body", "raises"),
    [
        (f"{MADE}model, optimizer = shard(model, held){STEPS}", False),
        (
            f"{MADE}model, optimizer = shard(model, {OTHER}, held)\noptimizer = held{STEPS}",
            False,
        ),
        (
            f"{MADE}model, _ = shard(model, {OTHER})\noptimizer = held{STEPS}",
            True,
        ),
    ],
    ids=["given", "given under another name", "another one is given"],
)
def test_the_guard_of_the_helper(pool: Pool, tmp_path: Path, body: str, raises: bool) -> None:
    """What ``fsdp_compat.guard_optimizers`` marks trains on where it is relinked, and stops at its first step else."""
    files = tree(train=main(body, IMPORTED), **REGISTERED)
    after = rewrite_tree(files)
    assert "fsdp_compat.guard_optimizers(model)" in after.files["parallel.py"]
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert len(set(before[0])) > 1, "the program trains"
    if raises:
        with pytest.raises(WorkerError, match="was built before the model was sharded"):
            train_tree(pool, after.files, tmp_path / "after")
    else:
        assert list(differ("losses", before, train_tree(pool, after.files, tmp_path / "after"))) == []
