"""What programs do with a model's parameters after a forward that no backward follows, trained before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import sys
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, Net, data, finish, note, start
"""
WRAP = "FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU, use_orig_params=True)"
ZERO2 = WRAP.replace("device_id", "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id")


def main(body: str, wrap: str = WRAP, imports: str = "") -> str:
    lines = "\n".join(f"    {line}" if line else "" for line in body.strip("\n").split("\n"))
    return f"""{HEAD}{imports}

def main():
    rank = start()
    model = {wrap}
    torch.manual_seed(10 + rank)
{lines}
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""


LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    {clear}
    loss = model(data()).square().mean()
    loss.backward()
    optimizer.step()
    note(loss)
    if step % 2 == 0:
        model.eval()
        with torch.no_grad():
            note(model(data()).mean())
        model.train()
"""
EMA = """
class Average:
    def __init__(self, model):
        self.values = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model):
        for mine, p in zip(self.values, model.parameters()):
            mine.mul_(0.9).add_(p.detach(), alpha=0.1)
"""
#: The best weights so far come back after an evaluation, which leaves the root gathered.
RESTORED = """
import copy

class Best:
    def __init__(self):
        self.state = None

    def __call__(self, value, net):
        if self.state is None:
            self.state = copy.deepcopy(net.state_dict())
            return False
        return True
"""
RESTORING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best = Best()
for step in range(6):
    loss = model(data()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    note(loss)
    with torch.no_grad():
        value = model(data()).mean()
    note(value)
    {restore}
"""
PROGRAMS = {
    "the best state loaded after an evaluation": tree(
        train=main(
            RESTORING.format(restore="if best(value, model):\n        model.load_state_dict(best.state)"),
            imports="from stop import Best\n",
        ),
        stop=RESTORED,
    ),
    "the best state loaded by a function, under SHARD_GRAD_OP": tree(
        train=main(
            RESTORING.format(restore="if best(value, model):\n        roll_back(model, best)"),
            ZERO2,
            imports="from stop import Best, roll_back\n",
        ),
        stop=RESTORED
        + """
def roll_back(network, kept):
    with torch.no_grad():
        print(network(data()).shape)
    network.load_state_dict(kept.state)
""".replace("def roll_back", "import torch\nfrom common import data\n\ndef roll_back"),
    ),
    "validation, then model.zero_grad()": tree(train=main(LOOP.format(clear="model.zero_grad()"))),
    "under SHARD_GRAD_OP": tree(train=main(LOOP.format(clear="model.zero_grad(set_to_none=True)"), ZERO2)),
    "p.grad = None": tree(train=main(LOOP.format(clear="for p in model.parameters():\n        p.grad = None"))),
    "p.grad.zero_()": tree(
        train=main(
            LOOP.format(clear="for _, p in model.named_parameters():\n        if p.grad is not None: p.grad.zero_()")
        )
    ),
    "between forward and backward": tree(
        train=main("""
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(data()).square().mean()
    model.zero_grad()
    loss.backward()
    optimizer.step()
    note(loss)
""")
    ),
    "a probe in another file, then zero_grad": tree(
        train=main(
            LOOP.format(clear="model.zero_grad()").replace("note(model(data()).mean())", "note(probe(model))"),
            imports="from looks import probe\n",
        ),
        looks="""
from common import data

def probe(net):
    return net(data()).mean()
""",
    ),
    "an epoch in a file of its own": tree(
        train=main(
            """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    epoch(model, optimizer)
    note(validate(model))
""",
            imports="from loops import epoch, validate\n",
        ),
        loops="""
import torch
from common import data, note

def epoch(net, optim):
    for _ in range(2):
        net.zero_grad()
        loss = net(data()).square().mean()
        loss.backward()
        optim.step()
        note(loss)

@torch.no_grad()
def validate(net):
    net.eval()
    value = net(data()).mean()
    net.train()
    return value
""",
    ),
    "a trainer's attributes": tree(
        train=main("Trainer(model).fit()", imports="from trainer import Trainer\n"),
        trainer="""
import torch
from common import data, note

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        self.model.zero_grad()
        loss = self.model(data()).square().mean()
        loss.backward()
        self.optimizer.step()
        note(loss)

    def validate(self):
        with torch.inference_mode(False), torch.no_grad():
            note(self.model(data()).mean())

    def fit(self):
        for step in range(6):
            self.step()
            if step % 2:
                self.validate()
""",
    ),
    "models in a dict": tree(
        train=main("""
parts = {"net": model}
optimizer = torch.optim.SGD(parts["net"].parameters(), lr=0.1)
for step in range(6):
    parts["net"].zero_grad()
    loss = parts["net"](data()).square().mean()
    loss.backward()
    optimizer.step()
    note(loss)
    with torch.no_grad():
        note(parts["net"](data()).mean())
""")
    ),
    "a closure": tree(
        train=main("""
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def closure():
    model.zero_grad()
    loss = model(data()).square().mean()
    loss.backward()
    return loss

for step in range(6):
    note(optimizer.step(closure))
    with torch.no_grad():
        note(model(data()).mean())
""")
    ),
    "a dataclass": tree(
        train=main(
            """
state = State(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(6):
    run(state)
""",
            imports="from state import State, run\n",
        ),
        state="""
from dataclasses import dataclass
import torch
from common import data, note

@dataclass
class State:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

def run(state):
    with torch.no_grad():
        note(state.model(data()).mean())
    loss = state.model(data()).square().mean()
    state.model.zero_grad()
    loss.backward()
    state.optimizer.step()
    note(loss)
""",
    ),
    "an optimizer after a first forward": tree(
        train=main("""
with torch.no_grad():
    note(model(data()).mean())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = model(data()).square().mean()
    loss.backward()
    optimizer.step()
    note(loss)
""")
    ),
    "a shadow that is given models which are not followed": tree(
        train=main(
            """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
shadow = Shadow()
getattr(shadow, "up" + "date")(model)
for step in range(4):
    optimizer.zero_grad()
    loss = model(data()).square().mean()
    loss.backward()
    optimizer.step()
    note(loss)
    getattr(shadow, "up" + "date")(model)
getattr(shadow, "copy" + "_to")(model)
note(model(data()).square().mean())
""",
            imports="from shadow import Shadow\n",
        ),
        shadow="""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Shadow:
    def __init__(self):
        self.kept = {}

    @torch.no_grad()
    def update(self, unknown):
        with FSDP.summon_full_params(unknown, writeback=False):
            for n, p in unknown.module.named_parameters():
                old = self.kept.get(n, p)
                self.kept[n] = 0.5 * old + 0.5 * p.detach().clone()

    @torch.no_grad()
    def copy_to(self, unknown):
        with FSDP.summon_full_params(unknown, writeback=True):
            for n, p in unknown.module.named_parameters():
                if n in self.kept:
                    p.data.copy_(self.kept[n])
""",
    ),
    "a weight of flat parameters, read between a forward elsewhere and its backward": tree(
        train=main(
            """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = score(model, model(data()))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    note(loss)
""",
            WRAP.replace(", use_orig_params=True", ""),
            imports="from score import score\n",
        ),
        score="""
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

def tied(weight, out):
    return F.linear(out, weight.t()).square().mean()

def score(model, out):
    return checkpoint(tied, model.head.weight, out, use_reentrant=False)
""",
    ),
    "an average in a file of its own": tree(
        train=main(
            """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = Average(model)
for step in range(5):
    optimizer.zero_grad()
    loss = model(data()).square().mean()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        note(model(data()).mean())
    average.update(model)
note(sum(value.sum() for value in average.values) if False else loss)
""",
            imports="from average import Average\n",
        ),
        average="import torch\n" + EMA,
    ),
}


@pytest.mark.parametrize("files", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_the_rewritten_program_trains_the_same(pool: Pool, tmp_path: Path, files: dict[str, str]) -> None:
    after = rewrite_tree(files)
    assert after.manual() == []
    results = [
        train_tree(pool, files, tmp_path / "before", fsdp1=True),
        train_tree(pool, after.files, tmp_path / "after"),
    ]
    assert list(differ("losses", *results)) == []
