"""Scripts that lie side by side are programs of their own: what one has changes nothing in another."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite_tree
from tests.rules.test_variants import spoken

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
#: A program that works as it is read, as examples do.
SCRIPT = f"""\
import torch
{WRAP}from parts import Net

model = Net.build(8)
model.init_weights()
sharded = FSDP(model, use_orig_params=True)
optimizer = torch.optim.AdamW(sharded.parameters(), lr=0.1)
for step in range(10):
    sharded(torch.rand(4, 8)).sum().backward()
    optimizer.step()
"""
PARTS = """\
import torch.nn as nn

def log(text):
    print(text)

class Net(nn.Module):
    @classmethod
    def build(cls, n):
        return cls(n)
"""
#: Another one, whose optimizer nothing says to be of the sharded model.
OTHERS = {
    "at module level": """\
import torch
from parts import log
from torch.distributed.tensor.parallel import parallelize_module

model = parallelize_module(Toy().to("cuda"), mesh, plan)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
for step in range(10):
    model(torch.rand(4, 8)).sum().backward()
    optimizer.step()
""",
    "in its main function": """\
import torch
from parts import log

def main(model):
    optimizer = make_optimizer(model)
    for step in range(10):
        model(torch.rand(4, 8)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    main(Toy())
""",
    "with a parser": """\
import argparse
import torch
from registry import OPTIMIZERS

args = argparse.ArgumentParser().parse_args()
optimizer = OPTIMIZERS[args.name](Toy())
optimizer.step()
""",
}


def output(files: dict[str, str], path: str) -> str:
    """What becomes of the file at ``path`` in a tree."""
    result = rewrite_tree({name: text.encode() for name, text in files.items()}).get(path)
    return result.source.decode() if isinstance(result, Changed) else files[path]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_an_optimizer_of_another_script_is_none_of_the_model(other: str) -> None:
    alone = output({"train.py": SCRIPT, "parts.py": PARTS}, "train.py")
    beside = output({"train.py": SCRIPT, "parts.py": PARTS, "other.py": other}, "train.py")
    assert "fully_shard(model" in alone and "is_replaced" not in alone
    assert beside == alone


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"train.py": f"import other\n{SCRIPT}"}, id="imported"),
        pytest.param({"train.py": SCRIPT + "import importlib\nimportlib.import_module(name)\n"}, id="loaded by a name"),
        pytest.param({"train.py": SCRIPT, "all.py": "import other\nimport train\n"}, id="imported with it"),
    ],
)
def test_an_optimizer_that_the_same_program_may_have_counts(files: dict[str, str]) -> None:
    other = OTHERS["at module level"].partition("for step")[0]
    tree = {"parts.py": PARTS, "other.py": other, **files}
    assert "is_replaced" in output(tree, "train.py")


MAIN = '\nif __name__ == "__main__":\n    run()\n'
FSDP_TRAINER = f"""\
import torch
{WRAP}
class Trainer:
    def __init__(self, net):
        self.model = FSDP(net, use_orig_params=True)
        self.engine = self.model

    def train_step(self, model, batch):
        return model(batch)

    def clip(self):
        self.engine.clip_grad_norm_(1.0)

def run():
    trainer = Trainer(make())
    trainer.train_step(trainer.model, 1)
{MAIN}"""
#: The same names in a program on DeepSpeed.
DEEPSPEED = {
    "a class of the same name": f"""\
import deepspeed

class Trainer:
    def __init__(self, net):
        self.setup(net)

    def setup(self, net):
        self.engine, *_ = deepspeed.initialize(model=net)

    def train_step(self, model, batch):
        loss = model(batch)
        torch.save(model.state_dict(), "model.pt")
        for p in model.parameters():
            print(p.data.norm(), p.numel())
        return loss

def run():
    Trainer(make()).fit()
{MAIN}""",
    "a base of the same name": f"""\
from deepspeed.trainers import Trainer

class Finetuner(Trainer):
    def train_step(self, batch):
        loss = self.model(batch)
        torch.save(self.model.state_dict(), "model.pt")
        for p in self.model.parameters():
            print(p.data.norm(), p.numel())
        return loss

def run():
    Finetuner(make()).fit()
{MAIN}""",
}


@pytest.mark.parametrize("text", DEEPSPEED.values(), ids=DEEPSPEED)
def test_a_class_of_the_same_name_in_another_program_is_another(text: str) -> None:
    tree = {"fsdp_train.py": FSDP_TRAINER, "ds_train.py": text}
    assert not spoken(tree, "ds_train.py")
    assert output(tree, "ds_train.py") == text


INITIALISED = """\
import torch.nn as nn

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        {call}

    def init_parameters(self):
        for p in self.encoder.parameters():
            nn.init.normal_(p)
        self.encoder.reset_parameters()
"""


@pytest.mark.parametrize("call", ["self.init_parameters()", "pass"])
@pytest.mark.parametrize("attribute", ["encoder", "net.encoder"])
def test_a_model_that_no_fsdp_program_builds_is_initialised_as_it_is(call: str, attribute: str) -> None:
    train = f"""\
{WRAP}
def run(trainer):
    trainer.{attribute} = FSDP(trainer.{attribute}, use_orig_params=True)
    trainer.{attribute}.train()
{MAIN}"""
    model = INITIALISED.format(name="Encoder", call=call)
    other = f"from encoder import Encoder\n\ndef run():\n    print(Encoder())\n{MAIN}"
    tree = {"train.py": train, "encoder.py": model, "classic.py": other}
    assert not spoken(tree, "encoder.py")
    assert output(tree, "encoder.py") == model


#: A module of which each program has its own objects, whatever the other one keeps there.
KEEPS = """\
import torch

KEPT = []

def keep(net):
    KEPT.append(net)
    return torch.optim.AdamW(net.parameters())

def kept():
    return KEPT[0]
"""
MAIN = """\
import torch
from keeps import keep, kept

def main(net):
    optimizer = keep(net)
    torch.save(kept().state_dict(), "model")
    torch.save(optimizer.state_dict(), "state")

if __name__ == "__main__":
    main(torch.nn.Linear(2, 2))
"""


@pytest.mark.parametrize("wraps", [True, False])
def test_what_another_program_keeps_in_a_shared_module_is_not_there(wraps: bool) -> None:
    sharded = f"{WRAP}{MAIN}".replace("keep(net)", "keep(FSDP(net))")
    files = {"keeps.py": KEEPS, "sharded.py": sharded, "other.py": sharded if wraps else MAIN}
    assert {"FSDP309", "FSDP311"} & spoken(files, "other.py").keys() == ({"FSDP309", "FSDP311"} if wraps else set())
