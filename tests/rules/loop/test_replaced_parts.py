"""Parts of sharded models that are exchanged, in one file and in several; and parts of models that are not sharded."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

HEAD = """
import torch, torch.nn as nn
from torch.nn.utils import parametrize, prune
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""
BOTH = pytest.mark.parametrize("settings", [Settings(), Settings(to="shim")], ids=["native", "shim"])
EXCHANGES = {
    "an attribute": "model.head = nn.Linear(6, 3)",
    "a name for it": "head = nn.Linear(6, 3)\n    model.head = head",
    "setattr": "setattr(model, 'head', nn.Linear(6, 3))",
    "an attribute of a part": "model.head.scale = nn.Parameter(torch.ones(3))",
    "register_parameter": "model.head.register_parameter('scale', nn.Parameter(torch.ones(3)))",
    "add_module": "model.add_module('head', nn.Linear(6, 3))",
    "register_module": "model.register_module('head', nn.Linear(6, 3))",
    "the dictionary of modules": "model._modules['head'] = nn.Linear(6, 3)",
    "the dictionary of parameters": "model.head._parameters['scale'] = nn.Parameter(torch.ones(3))",
    "an index": "model.blocks[0] = nn.Linear(6, 6)",
    "append": "model.blocks.append(nn.Linear(6, 6))",
    "embeddings": "model.resize_token_embeddings(10)",
    "weight norm": "torch.nn.utils.weight_norm(model.head)",
    "a new weight norm": "torch.nn.utils.parametrizations.weight_norm(model.head)",
    "spectral norm": "nn.utils.spectral_norm(model.head)",
    "a parametrization": "parametrize.register_parametrization(model.head, 'weight', nn.Identity())",
    "pruning": "prune.l1_unstructured(model.head, 'weight', amount=0.3)",
    "swapped tensors": "torch.utils.swap_tensors(model.head.weight, other)",
}
NONE = {
    "a number": "model.epoch = 3",
    "a function": "model.collate = make()",
    "another module": "self.projection = nn.Linear(6, 3)",
    "another list": "layers.append(nn.Linear(6, 6))",
    "a loss": "trainer.loss = nn.CrossEntropyLoss()",
    "another optimizer": "other.add_module('head', nn.Linear(6, 3))",
}
#: How ``fill(OWNER)`` in another file gets a sharded model, and what it calls that.
PLACES = {
    "an attribute": (
        "owner.brain",
        "class Owner:\n    def __init__(self, m):\n        self.brain = FSDP(m)\n",
        "Owner(m)",
    ),
    "a dataclass": ("owner.brain", "@dataclass\nclass Owner:\n    brain: object\n", "Owner(FSDP(m))"),
    "a dictionary": ("owner['brain']", "", "{'brain': FSDP(m)}"),
    "a list": ("owner[0]", "", "[FSDP(m)]"),
    "a factory": ("owner", "def make(m):\n    return FSDP(m)\n", "make(m)"),
    "a closure": ("owner", "def outer(m):\n    def inner():\n        return FSDP(m)\n    return inner\n", "outer(m)()"),
}
USES = {
    "FSDP217": ("setattr(OWNER.head.weight, 'data', x)", "OWNER.head.weight = nn.Parameter(x)"),
    "FSDP222": (
        "dist._broadcast_coalesced(group, list(OWNER.parameters()), 1, 0)",
        "dist.all_gather(x, OWNER.head.weight)",
    ),
    "FSDP226": ("nn.init.normal_(OWNER.head.weight)", "OWNER.head.reset_parameters()"),
    "FSDP229": ("OWNER.head = nn.Linear(6, 3)", "OWNER.blocks.append(nn.Linear(6, 6))"),
}


def levels(rule: str, source: str, settings: Settings, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, settings, **others) if found.rule == rule]


@BOTH
@pytest.mark.parametrize("line", EXCHANGES.values(), ids=EXCHANGES.keys())
def test_it_is_left_to_the_reader_below_the_wrap(line: str, settings: Settings) -> None:
    below = f"{HEAD}def build(net, other):\n    model = FSDP(net)\n    {line}\n    return model\n"
    above = f"{HEAD}def build(model, other):\n    {line}\n    model = FSDP(model)\n    return model\n"
    assert levels("FSDP229", below, settings) == ["manual"]
    assert levels("FSDP229", above, settings) == []


@BOTH
@pytest.mark.parametrize("line", NONE.values(), ids=NONE.keys())
def test_other_objects_take_what_they_like(line: str, settings: Settings) -> None:
    source = (
        f"{HEAD}def build(self, net, trainer, layers, other):\n    model = FSDP(net)\n    {line}\n    return model\n"
    )
    assert levels("FSDP229", source, settings) == []


@pytest.mark.parametrize(("rule", "line"), [(rule, line) for rule, lines in USES.items() for line in lines])
@pytest.mark.parametrize(("name", "definition", "made"), PLACES.values(), ids=PLACES.keys())
def test_an_owner_is_followed_to_another_file(rule: str, line: str, name: str, definition: str, made: str) -> None:
    imports = "import torch.nn as nn\nimport torch.distributed as dist\n"
    fill = f"{imports}def fill(owner, x, group):\n    {line.replace('OWNER', name)}\n"
    main = (
        f"from dataclasses import dataclass\nfrom example import fill\n{HEAD}{definition}"
        f"def main(m, x, group):\n    owner = {made}\n    fill(owner, x, group)\n"
    )
    assert levels(rule, fill, Settings(), main=main) == ["manual"]
    assert levels(rule, fill, Settings(), main=main.replace("FSDP(m)", "list(m)")) == []


SETTINGS_OF = "def fill(load, other):\n    test_cfg = load()\n    test_cfg.fsdp_config = None\n    {line}\n"
READS = f"{HEAD}class Net(Base):\n    def forward(self, x):\n        return self.body(x, self.loss_fn)\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("test_cfg.model.loss_fn = 'torch'", []),
        ("test_cfg.models[0].model.loss_fn = 'torch'", []),
        ("model_cfg = test_cfg.model\n    model_cfg.loss_fn = 'torch'", []),
        ("other.model.loss_fn = 'torch'", ["review"]),
    ],
)
def test_a_model_of_settings_is_no_module(line: str, said: list[str]) -> None:
    main = f"{READS}def main(holder):\n    holder.model = FSDP(holder.model)\n"
    assert levels("FSDP229", SETTINGS_OF.format(line=line), Settings(), main=main) == said
    kept = main.replace("holder.model", "holder.cfg.model")
    assert levels("FSDP229", SETTINGS_OF.format(line=line), Settings(), main=kept) == ["review"]
