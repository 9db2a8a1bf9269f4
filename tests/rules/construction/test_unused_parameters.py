"""What is said about parameters that a step does not use, by what the file shows of the model."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

HEAD = "import torch\nimport torch.nn as nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
NET = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 2)

    def forward(self, x):
        {inner}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(2, 2)
        {more}

    def forward(self, x, mask=None):
        x = self.up(x)
        for block in self.blocks:
            x = {step}
        return {last}


"""
SHOWN = {
    "more": "self.act = nn.ReLU()",
    "step": "block(self.act(x))",
    "last": "self.head(x)",
    "inner": "return self.line(x)",
}
BUILD = "def build():\n    model = Net()\n    return FSDP(model)\n"


def net(**parts: str) -> str:
    return HEAD + NET.format(**SHOWN | parts) + BUILD


def level(source: str, torch: tuple[int, int] = (2, 6)) -> str:
    (found,) = (entry for entry in findings(source, Settings(torch=torch)) if entry.rule == "FSDP121")
    return found.level.value


@pytest.mark.parametrize(
    "source",
    [
        net(),
        net(more="self.scale = nn.Parameter(torch.ones(2))", step="block(x)", last="self.head(x) * self.scale"),
        net(last="{'x': self.head(x)}"),
        HEAD + "def build():\n    return FSDP(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))\n",
        HEAD + "def build():\n    model = nn.Linear(2, 2).to('cpu')\n    model = FSDP(model)\n    return model\n",
        HEAD + "def build(model):\n    model.requires_grad_(False)\n    return FSDP(model)\n",
        HEAD + "def build(model):\n    model = FSDP(model)\n    model.requires_grad_(False)\n    return model\n",
        HEAD + "def build(model):\n    return FSDP(model.eval().requires_grad_(False))\n",
        HEAD + "def build(model):\n    return FSDP(model).requires_grad_(False)\n",
    ],
)
def test_nothing_is_to_do_where_each_step_uses_all(source: str) -> None:
    assert level(source) == "info"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (net(), "safe"),
        (net(step="block(x) if torch.rand(()) > 0.1 else x"), "review"),
        (net(more="self.other = nn.ModuleList([nn.Linear(2, 2)] * 2)", last="self.other[int(x[0, 0])](x)"), "review"),
        (HEAD + "def build(model):\n    model = FSDP(model)\n    return model\n", "review"),
    ],
)
def test_zeros_of_a_unit_that_a_step_skips_are_an_assumption(source: str, expected: str) -> None:
    assert level(source, (2, 13)) == expected


@pytest.mark.parametrize(
    "source",
    [
        net(last="self.head(x) if mask is None else x"),
        net(step="block(x) if torch.rand(()) > 0.1 else x"),
        net(inner="return self.line(x) if self.training else x"),
        net(inner="if x.sum() > 0:\n            return x\n        return self.line(x)"),
        net(more="self.other = make()"),
        net(more="self.other = nn.ModuleList([nn.Linear(2, 2)] * 2)", last="self.other[int(x[0, 0])](self.head(x))"),
        net(more="self.other = nn.Linear(2, 2)", last="dict(self.named_children())['other'](self.head(x))"),
        HEAD + "def build(model):\n    return FSDP(model)\n",
        HEAD + "def build(models):\n    return [FSDP(model) for model in models]\n",
        HEAD + "def build(model, other):\n    other.requires_grad_(False)\n    return FSDP(model)\n",
        HEAD + "def build(model):\n    model.requires_grad_(True)\n    return FSDP(model)\n",
        HEAD + "from net import Net\n\n" + BUILD,
        net(last="self.head(x), x"),
        net(last="dict(x=self.head(x))"),
        net(step="block(x.detach())"),
        net(more="self.other = nn.Linear(2, 2)", step="block(x)\n        unread = self.other(x)"),
        HEAD + "def build(m):\n    m.requires_grad_(False)\n    m.head.requires_grad_(True)\n    return FSDP(m)\n",
        HEAD + "def build(m):\n    m.requires_grad_(False)\n    add_lora(m)\n    return FSDP(m)\n",
        HEAD + "def build(m, last):\n    m.requires_grad_(False)\n    last.requires_grad = True\n    return FSDP(m)\n",
    ],
)
def test_a_step_is_assumed_to_use_all_elsewhere(source: str) -> None:
    assert level(source) == "review"


@pytest.mark.parametrize("more", ["self.other = nn.Linear(2, 2)", "self.other = nn.Parameter(torch.ones(2))"])
def test_a_part_that_nothing_reads_takes_the_helper(more: str) -> None:
    source = net(more=more, step="block(x)")
    (found,) = (entry for entry in findings(source) if entry.rule == "FSDP101")
    assert "no step uses other" in found.message
    (found,) = (entry for entry in findings(source, Settings(helpers="never")) if entry.rule == "FSDP101")
    assert found.level.value == "manual"
    assert level(source, (2, 13)) == "review"


ENTRIES = {
    "heads by a task": "nn.ModuleDict({'a': nn.Linear(2, 2), 'b': nn.Linear(2, 2)})",
    "experts by a number": "nn.ModuleList([Block() for _ in range(3)])",
    "plain parameters": "nn.ParameterDict({'a': nn.Parameter(torch.ones(2))})",
}


@pytest.mark.parametrize("made", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize("torch", [(2, 6), (2, 13)])
def test_an_entry_that_a_step_asks_for_takes_the_helper(made: str, torch: tuple[int, int]) -> None:
    source = net(more=f"self.other = {made}", step="block(x)", last="self.other[mask] + self.head(x)")
    (found,) = (entry for entry in findings(source, Settings(torch=torch)) if entry.rule == "FSDP101")
    assert "a step may use only some entries of other" in found.message
    (found,) = (entry for entry in findings(source, Settings(helpers="never")) if entry.rule == "FSDP101")
    assert found.level.value == "manual"


ADAPTERS = """
class Adapted(nn.Module):
    def __init__(self, line):
        super().__init__()
        self.line = line
        self.low, self.active = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("a", "b")}), ACTIVE

    def forward(self, x):
        out = self.line(x)
        for name in self.active:
            out = out + self.low[name](x)
        return out


def adapt(model):
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            setattr(model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2], Adapted(module))
    return model


def select(model, *names):
    for module in model.modules():
        if isinstance(module, Adapted):
            module.active = list(names)


def build(model):
    return FSDP(adapt(model))
"""


@pytest.mark.parametrize("active", ["[]", "['a', 'b']", "list(self.low)"])
def test_adapters_that_a_setting_names_take_the_helper(active: str) -> None:
    (found,) = (entry for entry in findings(HEAD + ADAPTERS.replace("ACTIVE", active)) if entry.rule == "FSDP101")
    assert "a step may use only some entries of low" in found.message


def test_entries_whose_keys_are_set_once_are_assumed_to_be_all() -> None:
    source = net(
        more="self.names, self.other = ['a'], nn.ModuleDict({'a': nn.Linear(2, 2)})",
        step="block(x)",
        last="self.head(x) + sum(self.other[name](x) for name in self.names)",
    )
    assert level(source) == "review"


@pytest.mark.parametrize("made", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize(
    "last",
    [
        "self.other['a'] + self.head(x)",
        "sum(self.other[key](x) for key in self.other)",
        "self.other[mask] + self.other['a']",
        "self.call(self.other, x)",
    ],
)
def test_other_entries_take_no_helper(made: str, last: str) -> None:
    source = net(more=f"self.other = {made}", step="block(x)", last=last)
    assert "a step uses one entry" not in " ".join(entry.message for entry in findings(source))


@pytest.mark.parametrize(
    "more", ["self.other = nn.ReLU()", "self.other = nn.Parameter(torch.ones(2), requires_grad=False)"]
)
def test_a_part_without_gradients_may_be_read_by_nothing(more: str) -> None:
    (found,) = (entry for entry in findings(net(more=more, step="block(x)")) if entry.rule == "FSDP101")
    assert found.level.value == "safe"


DEPTH = """
class Deep(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.depth = depth
        self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers[: self.depth]:
            x = layer(x)
        return x


def build(depth, steps):
    model = FSDP(Deep(depth))
    for step in range(steps):
        model.module.depth = step + 1
    return model
"""


@pytest.mark.parametrize("end", ["self.depth", "depth", "-1", "self.depth :"])
def test_as_many_entries_as_a_setting_says_take_the_helper(end: str) -> None:
    source = HEAD + DEPTH.replace("[: self.depth]", f"[{end}]" if ":" in end else f"[:{end}]")
    source = source.replace("def forward(self, x)", "def forward(self, x, depth=3)")
    (found,) = (entry for entry in findings(source) if entry.rule == "FSDP101")
    assert ("a step may use only some entries of layers" in found.message) == (end != "-1")
    kept = source.replace("model.module.depth = step + 1", "model(step)")
    (found,) = (entry for entry in findings(kept) if entry.rule == "FSDP101")
    assert ("a step may use only some entries of layers" in found.message) == (end == "depth")
