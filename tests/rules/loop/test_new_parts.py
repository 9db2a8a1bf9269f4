"""A project's own modules put into a sharded model, in one file and in several; and what is no part of one."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

IMPORTS = "import torch\nimport torch.nn as nn\n"
HEAD = f"{IMPORTS}from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
OWN = (
    "class Own(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.inner = nn.Linear(6, 3)\n"
)
DEFINITIONS = {
    "a class": (OWN, "Own()"),
    "a subclass of a layer": ("class Own(nn.Linear):\n    pass\n", "Own(6, 3)"),
    "a class of a class": (f"{OWN}\nclass Other(Own):\n    pass\n", "Other()"),
    "a module of another library": (
        "from library import Base\nclass Own(Base):\n    def forward(self, x):\n        return x\n",
        "Own()",
    ),
    "a factory": (f"{OWN}\ndef make(size):\n    return Own()\n", "make(3)"),
    "a factory with a name": (f"{OWN}\ndef make(size):\n    new = Own()\n    return new\n", "make(3)"),
    "a factory of factories": (
        f"{OWN}\ndef make(size):\n    return Own()\n\ndef build():\n    return make(3)\n",
        "build()",
    ),
    "moved": (OWN, "Own().to('cpu').eval()"),
}
PUTS = {
    "an attribute": "model.head = NEW",
    "an annotated one": "model.head: nn.Module = NEW",
    "a name": "new = NEW\n    model.head = new",
    "setattr": "setattr(model, 'head', NEW)",
    "an element": "model.blocks[0] = NEW",
    "append": "model.blocks.append(NEW)",
    "a dictionary": "model.parts['head'] = NEW",
    "a part": "model.body.head = NEW",
}
#: How a function in another file gets the sharded model, and what it calls that.
OWNERS = {
    "self.net": "class A:\n    def __init__(self, m):\n        self.net = FSDP(m)\n    def fill(self):\n        LINE\n",
    "held['net']": "def fill(m):\n    held = {'net': FSDP(m)}\n    LINE\n",
    "nets[0]": "def fill(m):\n    nets = [FSDP(m)]\n    LINE\n",
    "wrap(m)": "def wrap(m):\n    return FSDP(m)\n\ndef fill(m):\n    net = wrap(m)\n    LINE\n",
}


def said(source: str, settings: Settings | None = None, **others: str) -> list[tuple[str, str]]:
    return [
        (found.level.value, found.message) for found in findings(source, settings, **others) if found.rule == "FSDP229"
    ]


@pytest.mark.parametrize(
    ("put", "text", "new"),
    [
        (put, *definition)
        for first, put in enumerate(PUTS.values())
        for second, definition in enumerate(DEFINITIONS.values())
        if (first + second) % 4 == 0
    ],
)
@pytest.mark.parametrize("whole", [True, False], ids=["one file", "two files"])
def test_a_module_of_the_project_is_seen(put: str, text: str, new: str, whole: bool) -> None:
    name = new.partition("(")[0]
    use = f"def build(net):\n    model = FSDP(net)\n    {put.replace('NEW', new)}\n"
    if whole:
        found = said(f"{HEAD}{text}\n{use}")
    else:
        found = said(f"{HEAD}from parts import {name}\n{use}", parts=IMPORTS + text)
    assert [level for level, _ in found] == ["manual"]


@pytest.mark.parametrize(("owner", "text"), OWNERS.items(), ids=OWNERS.keys())
def test_it_is_seen_in_other_owners(owner: str, text: str) -> None:
    line = f"{owner if '(' not in owner else 'net'}.head = parts.Own()"
    assert [level for level, _ in said(f"import parts\n{HEAD}{text.replace('LINE', line)}", parts=IMPORTS + OWN)] == [
        "manual"
    ]


@pytest.mark.parametrize("settings", [Settings(), Settings(to="shim")], ids=["native", "shim"])
def test_it_is_seen_from_a_table_of_classes(settings: Settings) -> None:
    use = "KINDS = {'own': Own, 'none': nn.Identity}\n\ndef build(net, kind):\n    model = FSDP(net)\n"
    found = said(f"{HEAD}{OWN}\n{use}    model.head = KINDS[kind]()\n", settings)
    assert [level for level, _ in found] == ["manual"]


WITHOUT = {
    "a loss": ("", "nn.CrossEntropyLoss()"),
    "a loss of the project": (
        "class Own(nn.Module):\n    def forward(self, x):\n        return x.mean()\n",
        "Own()",
    ),
    "one with settings": (
        "class Own(nn.Module):\n    def __init__(self, k):\n        super().__init__()\n        self.k = int(k)\n"
        "        self.inner = nn.MSELoss()\n    def forward(self, x):\n        return x.mean()\n",
        "Own(3)",
    ),
    "a setting of transformers": ("from transformers import GenerationConfig\n", "GenerationConfig(max_length=3)"),
}


@pytest.mark.parametrize(("text", "new"), WITHOUT.values(), ids=WITHOUT.keys())
def test_what_has_no_parameters_is_an_assumption(text: str, new: str) -> None:
    source = f"{HEAD}{text}\ndef build(net):\n    model = FSDP(net)\n    model.extra = {new}\n"
    assert said(source) == [
        ("review", "assumes the model does not read extra itself, which FSDP1 set only on the wrapper")
    ]


@pytest.mark.parametrize("new", ["nn.GELU()", "nn.CrossEntropyLoss()", "nn.Dropout(0.1)"])
def test_it_is_not_mixed_with_anything_in_a_part(new: str) -> None:
    source = f"{HEAD}\ndef build(net):\n    model = FSDP(net)\n    model.body.extra = {new}\n"
    assert said(source) == []


READS = {
    "a call": "self.extra(x)",
    "a number": "x * self.extra",
    "a condition": "x if self.extra else -x",
}


@pytest.mark.parametrize("line", ["model.extra = 0.5", "model.extra *= 2", "setattr(model, 'extra', nn.GELU())"])
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
@pytest.mark.parametrize("whole", [True, False], ids=["one file", "two files"])
def test_what_the_model_itself_reads_is_not_the_wrapper_s(line: str, read: str, whole: bool) -> None:
    net = f"class Net(nn.Module):\n    def forward(self, x):\n        return {read}\n"
    use = f"def build():\n    model = FSDP(Net())\n    {line}\n    return model\n"
    found = said(f"{HEAD}{net}\n{use}") if whole else said(f"{HEAD}from nets import Net\n{use}", nets=IMPORTS + net)
    assert found == [("manual", "FSDP2's model now reads this extra, which FSDP1 set only on the wrapper")]


NONE = {
    "a plain class": ("class Own:\n    def __init__(self):\n        self.x = nn.Linear(6, 3)\n", "model.head = Own()"),
    "an enumeration": ("from enum import Enum\nclass Own(Enum):\n    A = 1\n", "model.head = Own(1)"),
    "a dataclass": ("from dataclasses import dataclass\n@dataclass\nclass Own:\n    a: int\n", "model.head = Own(1)"),
    "a number": ("", "model.epoch = 3"),
    "an optimizer": ("", "model.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"),
    "before the wrap": (OWN, "net.head = Own()"),
    "an object that is wrapped later": (
        f"{OWN}\nclass Net(nn.Module):\n    def __init__(self):\n        self.part = Own()\n"
        "        self.part.flag = True\n    def wrap(self):\n        self.part = FSDP(self.part)\n"
        "    def forward(self, x):\n        return self.flag\n",
        "pass",
    ),
    "a state": ("", "state = model.state_dict()\n    state.update(nn.Linear(6, 3).state_dict())"),
    "an owner of models": (OWN, "model, trainer.head = model, Own()"),
}


@pytest.mark.parametrize(("text", "line"), NONE.values(), ids=NONE.keys())
def test_what_is_no_part_is_left(text: str, line: str) -> None:
    wrapped = "FSDP(net)"
    body = f"    {line}\n    model = {wrapped}\n" if "net." in line else f"    model = {wrapped}\n    {line}\n"
    assert said(f"{HEAD}{text}\ndef build(net, trainer):\n{body}    return model\n") == []
