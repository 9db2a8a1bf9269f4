"""Attributes that are assigned under a name which only a running program knows: over two and three files."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Unchanged
from tests.rules.helpers import rewrite_tree

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom uses import keep\n"
USES = "def keep(core):\n    return core.module.name\n"
GIVEN = {
    "setattr": "setattr(self, name, FSDP(net))",
    "a name of two parts": 'setattr(self, f"{name}_net", FSDP(net))',
    "a model with a name": "wrapped = FSDP(net)\n            setattr(self, name, wrapped)",
    "the dictionary of the object": "self.__dict__[name] = FSDP(net)",
    "an update of the dictionary": "self.__dict__.update({name: FSDP(net)})",
    "object": "object.__setattr__(self, name, FSDP(net))",
    "add_module": "self.add_module(name, FSDP(net))",
    "add_module by keywords": 'self.add_module(name=f"{name}_net", module=FSDP(net))',
    "register_module": "self.register_module(name, FSDP(net))",
}
JOB = """
import torch

class Job(torch.nn.Module):
    def __init__(self, lr, nets):
        self.lr = lr
        for name, net in nets.items():
            {}

    def run(self, name):
        {}
"""
HELPER = "def put(job, nets):\n    for name, net in nets.items():\n        setattr(job, name, FSDP(net))\n"
TAKEN = "from one import Job\nfrom uses import keep\n\ndef run(nets, name):\n    job = Job(1, nets)\n    keep({})\n"


def found(files: dict[str, str]) -> object:
    """What is said about the file that uses the model."""
    other = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net).eval()\n"
    trees = {f"{name}.py": text.encode() for name, text in {**files, "uses": USES, "other": other}.items()}
    result = rewrite_tree(trees).get("uses.py", Unchanged())
    return result if result == Unchanged() else [one.rule for one in result.findings]


def check(files: dict[str, str]) -> None:
    """The file that uses the model has its finding, and none where the model is not wrapped."""
    assert found(files) == ["FSDP206"]
    assert (
        found(
            {name: text.replace("FSDP(net)", "(net)").replace("FSDP(block)", "(block)") for name, text in files.items()}
        )
        == Unchanged()
    )


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN.keys())
@pytest.mark.parametrize("taken", ["self.actor", "getattr(self, name)"])
def test_the_class_itself_uses_them(given: str, taken: str) -> None:
    check({"one": HEAD + JOB.format(given, f"keep({taken})")})


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN.keys())
@pytest.mark.parametrize("taken", ["job.actor", "getattr(job, name)"])
def test_another_file_uses_those_of_an_object(given: str, taken: str) -> None:
    check({"one": HEAD + JOB.format(given, "pass"), "main": TAKEN.format(taken)})


def test_another_file_is_given_the_object() -> None:
    main = "from one import Job\nfrom two import go\n\ndef run(nets):\n    go(Job(1, nets))\n"
    two = "from uses import keep\n\ndef go(work):\n    keep(work.actor)\n"
    check({"one": HEAD + JOB.format(GIVEN["setattr"], "pass"), "two": two, "main": main})


def test_a_function_of_another_file_gives_them_to_the_object() -> None:
    two = JOB.replace("self.lr = lr\n", "put(self, nets)\n").format("pass", "keep(self.actor)")
    check({"one": f"{HEAD}\n{HELPER}", "two": f"from one import put\nfrom uses import keep\n{two}"})


def test_the_object_asks_without_another_name() -> None:
    one = HEAD + JOB.format(GIVEN["setattr"], "pass")
    main = TAKEN.replace("keep({})", "return job.actor.module.name")
    results = rewrite_tree({"one.py": one.encode(), "main.py": main.encode(), "uses.py": USES.encode()})
    assert [entry.rule for entry in results["main.py"].findings] == ["FSDP206"]


@pytest.mark.parametrize("taken", ["job.lr", "job.run", "job.optimizer", "nets.actor"])
def test_what_has_a_name_of_its_own_is_another_thing(taken: str) -> None:
    assert found({"one": HEAD + JOB.format(GIVEN["setattr"], "pass"), "main": TAKEN.format(taken)}) == Unchanged()


NAMED = {
    "setattr": 'setattr(self, "actor", FSDP(net))',
    "add_module": 'self.add_module("actor", FSDP(net))',
    "register_module": 'self.register_module("actor", module=FSDP(net))',
}


@pytest.mark.parametrize("given", NAMED.values(), ids=NAMED.keys())
def test_a_name_that_is_written(given: str) -> None:
    check({"one": HEAD + JOB.format(given, "pass"), "main": TAKEN.format("job.actor")})
    check({"one": HEAD + JOB.format(given, "keep(self.actor)")})


UNITS = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from uses import keep

def shard(model):
    for i, block in enumerate(model.blocks):
        {}
    return model
"""
MAIN = "from one import shard\nfrom uses import keep\n\ndef run(net):\n    net = shard(net)\n    keep(net.block0)\n"


@pytest.mark.parametrize(
    "given",
    [
        'setattr(model, f"block{i}", FSDP(block))',
        'model.add_module(f"block{i}", FSDP(block))',
        'model.register_module(f"block{i}", FSDP(block))',
        'model.__dict__[f"block{i}"] = FSDP(block)',
    ],
)
def test_units_of_a_model(given: str) -> None:
    check({"one": UNITS.format(given), "main": MAIN})
    check({"one": UNITS.format(given).replace("return model", "keep(model.block0)")})
