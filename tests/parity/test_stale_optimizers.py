"""Optimizers that are built before their model is wrapped, somewhere else: they train on, or the tool says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.test_gathered import HEAD
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

SHARD = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU, Block

def shard(net):
    return FSDP(net, device_id=CPU, use_orig_params=True)

def shard_blocks(net):
    for index, block in enumerate(net.blocks):
        net.blocks[index] = FSDP(block, device_id=CPU, use_orig_params=True)
"""
STEPS = """
for step in range(4):
    optimizer.zero_grad()
    loss = model(data()).square().mean()
    loss.backward()
    optimizer.step()
    note(loss)
"""
TRAINER = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU, data, note

class Trainer:
{init}

    def fit(self):
        for step in range(4):
            self.optimizer.zero_grad()
            loss = self.model(data()).square().mean()
            loss.backward()
            self.optimizer.step()
            note(loss)
"""
WRAPPED = "FSDP(self.model, device_id=CPU, use_orig_params=True)"


def main(body: str, imports: str = "", setup: str = "") -> str:
    lines = "\n".join(f"    {line}" if line else "" for line in body.strip("\n").split("\n"))
    return f"""{HEAD}{imports}
{setup}

def main():
    rank = start()
    torch.manual_seed(10)
{lines}
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""


def trainer(init: str) -> str:
    return TRAINER.format(init="\n".join(f"    {line}" if line else "" for line in init.strip("\n").split("\n")))


OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
#: Those that come out right, and those that a finding of level manual holds up.
TRAINED = {
    "a helper in another file": tree(
        train=main(f"model = Net()\n{OPTIMIZER}\nmodel = shard(model){STEPS}", "from parallel import shard\n"),
        parallel=SHARD,
    ),
    "a function that is given both": tree(
        train=main(
            f"model = Net()\n{OPTIMIZER}\nmodel, optimizer = prepare(model, optimizer){STEPS}",
            setup="""
def prepare(model, optimizer):
    model = FSDP(model, device_id=CPU, use_orig_params=True)
    return model, optimizer
""",
        )
    ),
    "a trainer that wraps where it starts": tree(
        train=main(f"model = Net()\n{OPTIMIZER}\nTrainer(model, optimizer).fit()", "from trainer import Trainer\n"),
        trainer=trainer(f"""
def __init__(self, model, optimizer):
    self.model = model
    self.model = {WRAPPED}
    self.optimizer = optimizer
"""),
    ),
    "a list of optimizers": tree(
        train=main("""
model = Net()
optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.embed, model.blocks, model.head)]
model = FSDP(model, device_id=CPU, use_orig_params=True)
for step in range(4):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = model(data()).square().mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    note(loss)
""")
    ),
    "both from one function, wrapped by its caller": tree(
        train=main(
            f"model, optimizer = build()\nmodel = FSDP(model, device_id=CPU, use_orig_params=True){STEPS}",
            "from factory import build\n",
        ),
        factory=f"""
import torch
from common import Net

def build():
    model = Net()
    {OPTIMIZER}
    return model, optimizer
""",
    ),
    "both from one function, wrapped by a third": tree(
        train=main(f"model, optimizer = build(){STEPS}", "from factory import build\n"),
        factory=f"""
import torch
from common import Net
from parallel import shard

def build():
    model = Net()
    {OPTIMIZER}
    model = shard(model)
    return model, optimizer
""",
        parallel=SHARD,
    ),
    "blocks that a helper wraps in place": tree(
        train=main(f"model = Net()\n{OPTIMIZER}\nshard_blocks(model){STEPS}", "from parallel import shard_blocks\n"),
        parallel=SHARD,
    ),
    "a trainer that wraps in a method of its own": tree(
        train=main(f"model = Net()\n{OPTIMIZER}\nTrainer(model, optimizer).fit()", "from trainer import Trainer\n"),
        trainer=trainer(f"""
def __init__(self, model, optimizer):
    self.model = model
    self.optimizer = optimizer
    self._setup()

def _setup(self):
    self.model = {WRAPPED}
"""),
    ),
    "a trainer with a method for each": tree(
        train=main("Trainer(Net()).fit()", "from trainer import Trainer\n"),
        trainer=trainer(f"""
def __init__(self, model):
    self.model = model
    self.build()
    self.wrap()

def build(self):
    self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

def wrap(self):
    self.model = {WRAPPED}
"""),
    ),
    "a dict of what is trained": tree(
        train=main("""
state = {"model": Net()}
state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)
state["model"] = FSDP(state["model"], device_id=CPU, use_orig_params=True)
for step in range(4):
    state["optimizer"].zero_grad()
    loss = state["model"](data()).square().mean()
    loss.backward()
    state["optimizer"].step()
    note(loss)
""")
    ),
    "a dataclass of what is trained": tree(
        train=main(
            """
model = Net()
state = State(model, torch.optim.SGD(model.parameters(), lr=0.1))
shard(state)
for step in range(4):
    state.optimizer.zero_grad()
    loss = state.model(data()).square().mean()
    loss.backward()
    state.optimizer.step()
    note(loss)
""",
            "from dataclasses import dataclass\n",
            setup="""
@dataclass
class State:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer


def shard(state):
    state.model = FSDP(state.model, device_id=CPU, use_orig_params=True)
""",
        )
    ),
    "a part of a library's model": tree(
        train=main(f"""
model = torch.nn.TransformerEncoderLayer(6, 2, dropout=0.0)
optimizer = torch.optim.SGD(model.self_attn.parameters(), lr=0.1)
model = FSDP(model, device_id=CPU, use_orig_params=True)
{STEPS}""")
    ),
    "a part of a library's model, stepped before": tree(
        train=main(f"""
model = torch.nn.TransformerEncoderLayer(6, 2, dropout=0.0)
trained = [p for n, p in model.self_attn.named_parameters() if p.requires_grad]
optimizer = torch.optim.SGD(trained, lr=0.1)
optimizer.step()
model = FSDP(model, device_id=CPU, use_orig_params=True)
{STEPS}""")
    ),
    "a closure that wraps": tree(
        train=main(
            f"""
model = Net()
{OPTIMIZER}

def wrap():
    nonlocal model
    model = FSDP(model, device_id=CPU, use_orig_params=True)

wrap()
{STEPS}"""
        )
    ),
}


@pytest.mark.parametrize("files", TRAINED.values(), ids=TRAINED.keys())
def test_the_rewritten_program_trains_the_same_or_says_why_not(
    pool: Pool, tmp_path: Path, files: dict[str, str]
) -> None:
    after = rewrite_tree(files)
    if any("FSDP117" in entry for entry in after.manual()):
        return
    results = [
        train_tree(pool, files, tmp_path / "before", fsdp1=True),
        train_tree(pool, after.files, tmp_path / "after"),
    ]
    assert list(differ("losses", *results)) == []
    assert len(set(results[0][0])) > 1, "the program trains"


#: A strategy that no file says, so that ``fsdp_compat.shard`` takes the arguments.
CHOSEN = """
from torch.distributed.fsdp import ShardingStrategy

def chosen():
    return next(iter(ShardingStrategy))
"""


def at_run_time(files: dict[str, str]) -> dict[str, str]:
    """``files`` whose wraps take their strategy from :data:`CHOSEN`."""
    given = "use_orig_params=True, sharding_strategy=strategies.chosen()"
    after = {path: text.replace("use_orig_params=True", given) for path, text in files.items()}
    return {
        "strategies.py": CHOSEN,
        **{path: f"import strategies\n{text}" if given in text else text for path, text in after.items()},
    }


@pytest.mark.parametrize("files", [at_run_time(files) for files in TRAINED.values()], ids=TRAINED.keys())
def test_the_helper_relinks_an_optimizer_or_the_tool_says_why_not(
    pool: Pool, tmp_path: Path, files: dict[str, str]
) -> None:
    after = rewrite_tree(files)
    if any("FSDP117" in entry for entry in after.manual()):
        return
    assert any("fsdp_compat.shard" in text for text in after.files.values())
    results = [
        train_tree(pool, files, tmp_path / "before", fsdp1=True),
        train_tree(pool, after.files, tmp_path / "after"),
    ]
    assert list(differ("losses", *results)) == []
    assert len(set(results[0][0])) > 1, "the program trains"
