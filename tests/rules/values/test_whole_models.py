"""Models of which each forward uses all parameters (FSDP121), by what their forwards do with each part."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

MODELS = """
from collections import OrderedDict
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.line = nn.Linear(width, width)

    def forward(self, x, skip=None):
        return x + self.line(x)

class Deep(Block):
    def __init__(self, width):
        super().__init__(width)
        self.more = nn.Linear(width, width)

    def forward(self, x, skip=None):
        return self.more(super().forward(x))

class Left(Block):
    def forward(self, x):
        return x

class Pair(nn.Sequential):
    pass

class Plain:
    pass

class Scaled(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight / self.weight.norm(), self.bias)

class Bare(nn.Linear):
    def forward(self, x):
        return x @ self.weight.t()

class Net(nn.Module):
    def __init__(self, config, width=4):
        super().__init__()
        self.config = config
        self.scale = width ** -0.5
        self.up = nn.Linear(2, width)
        self.blocks = nn.ModuleList([Block(width), Deep(width)])
        self.head = nn.Linear(width, 2)
        {more}

    def begin(self, x):
        return self.up(x) * self.scale

    def both(self, x):
        return self.up(x), self.head(self.up(x))

    def forward(self, x, labels=None):
        {body}
"""
TRAIN = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from models import Net

def build(config):
    return Net(config)

def train(config, batches):
    net = build(config)
    model = FSDP(net)
    for batch in batches:
        {call}.backward()
"""
LOOP = "for block in self.blocks:\n            x = block(x)"
PLAIN = f"x = self.begin(x)\n        {LOOP}\n        return self.head(x)"


def level(body: str, more: str = "pass", call: str = "model(batch).sum()") -> str:
    models = MODELS.format(more=more, body=body)
    (found,) = (one for one in findings(TRAIN.format(call=call), models=models) if one.rule == "FSDP121")
    return found.level.value


USED = {
    "by a method and a loop": PLAIN,
    "through a checkpoint": PLAIN.replace("block(x)", "checkpoint(block, x, use_reentrant=False)"),
    "in a numbered loop": PLAIN.replace("for block in self.blocks", "for number, block in enumerate(self.blocks)"),
    "with others in a loop": PLAIN.replace("for block in self.blocks", "for block, _ in zip(self.blocks, (1, 2))"),
    "in a list of outputs": PLAIN.replace(LOOP, "outs = []\n        " + LOOP + "\n            outs.append(x)").replace(
        "self.head(x)", "self.head(torch.stack(outs).sum(0))"
    ),
    "with a loss beside": PLAIN.replace(
        "return self.head(x)",
        "logits = self.head(x)\n        loss = None\n        if labels is not None:\n"
        "            loss = F.cross_entropy(logits, labels)\n        return {'loss': loss, 'logits': logits}",
    ),
    "in both arms": PLAIN.replace(
        "return self.head(x)",
        "if self.training:\n            return self.head(F.dropout(x))\n        return self.head(x)",
    ),
}


@pytest.mark.parametrize("name", USED)
def test_all_parts_are_used(name: str) -> None:
    assert level(USED[name]) == "info"


GPT = """self.transformer = nn.ModuleDict(dict(
            wte=nn.Linear(2, width),
            h=nn.ModuleList([Block(width) for _ in range(config.layers)]),
            {more}
        ))"""
STEPS = PLAIN.replace("self.begin(x)", "self.transformer.wte(self.begin(x).mean(-1, True))").replace(
    LOOP, LOOP + "\n        for block in self.transformer.h:\n            x = block(x)"
)


@pytest.mark.parametrize(
    ("more", "body", "expected"),
    [
        ("", STEPS, "info"),
        ("", STEPS.replace("transformer.wte", "transformer['wte']"), "info"),
        ("ln=nn.LayerNorm(width)", STEPS, "review"),
        ("ln=nn.LayerNorm(width)", STEPS.replace("self.head(x)", "self.head(self.transformer.ln(x))"), "info"),
        ("", STEPS.replace("self.transformer.h:", "self.transformer.h[1:]:"), "review"),
        ("", STEPS.replace("transformer.wte", "transformer[labels]"), "review"),
    ],
)
def test_entries_of_a_dictionary(more: str, body: str, expected: str) -> None:
    assert level(body, GPT.replace("{more}", more)) == expected


ATTENDS = PLAIN.replace("self.head(x)", "self.head({of})")


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ("self.attend(x, x, x)[0]", "info"),
        ("self.attend(x, x, x, need_weights=False)[0] + x", "info"),
        ("self.attend(x, x, x)[1] @ x", "review"),
    ],
)
def test_the_weights_of_an_attention_are_no_result_of_its_output_layer(of: str, expected: str) -> None:
    assert level(ATTENDS.format(of=of), "self.attend = nn.MultiheadAttention(width, 1)") == expected


LEFT_OUT = {
    "an arm": PLAIN.replace(
        "return self.head(x)", "if labels is None:\n            return x\n        return self.head(x)"
    ),
    "an entry": PLAIN.replace(LOOP, "x = self.blocks[0](x)"),
    "a slice": PLAIN.replace("for block in self.blocks", "for block in self.blocks[1:]"),
    "a loop that ends": PLAIN.replace(
        "x = block(x)", "x = block(x)\n            if x.sum() > 0:\n                break"
    ),
    "a round": PLAIN.replace("x = block(x)", "if labels is None:\n                x = block(x)"),
    "what the loop gives": PLAIN.replace("x = block(x)", "x = x + 1"),
    "the other of a pair": PLAIN.replace("for block in self.blocks", "for _, block in zip(self.blocks, labels)"),
    "without gradients": PLAIN.replace("x = self.begin(x)", "with torch.no_grad():\n            x = self.begin(x)"),
    "detached": PLAIN.replace("self.begin(x)", "self.begin(x).detach()"),
    "a result of two": PLAIN.replace("return self.head(x)", "return self.head(x), x"),
    "another result of a method": PLAIN.replace("return self.head(x)", "return self.both(x)[0] + x"),
    "a part of a method": PLAIN.replace("self.begin(x)", "self.up.weight.sum() + x"),
    "a name that is made": PLAIN.replace("self.head(x)", "getattr(self, f'he{labels}')(x)"),
    "a number": PLAIN.replace("return self.head(x)", "return x * self.head(x).argmax()"),
    "a comparison": PLAIN.replace("return self.head(x)", "return x * (self.head(x) > 0)"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_part_may_be_left_out(name: str) -> None:
    assert level(LEFT_OUT[name]) == "review"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("self.act = nn.ReLU()", "info"),
        ("self.size = config.size", "review"),
        ("self.other = config.build()", "review"),
        ("self.other = Block(width)", "review"),
        ("self.register_parameter('other', nn.Parameter(torch.ones(2)))", "review"),
        ("setattr(self, config.name, nn.Linear(2, 2))", "review"),
        ("self.steps = 0", "info"),
        ("self.up = nn.Sequential(nn.Sequential(self.up, nn.ReLU()), Block(width))", "info"),
        ("self.head = nn.Sequential(Left(width))", "review"),
        ("self.up = nn.Sequential(OrderedDict([('up', self.up), ('block', Block(width))]))", "info"),
        ("self.up = nn.Sequential(OrderedDict([('up', self.up), ('left', Left(width))]))", "review"),
        ("self.up = nn.Sequential(OrderedDict(up=self.up, block=Block(width)))", "info"),
        ("self.up = nn.Sequential(OrderedDict(up=self.up, left=Left(width)))", "review"),
        ("self.up = nn.Sequential({'up': self.up, 'other': config.build()})", "review"),
        ("self.head = Scaled(width, 2)", "info"),
        ("self.head = Bare(width, 2)", "review"),
        ("self.other = Pair(nn.Linear(2, 2))", "review"),
        ("self.plain = Plain()", "info"),
    ],
)
def test_what_nothing_reads(more: str, expected: str) -> None:
    assert level(PLAIN, more) == expected


@pytest.mark.parametrize("call", ["model.head(batch).sum()", "model.begin(batch).sum()"])
def test_what_is_entered_elsewhere(call: str) -> None:
    assert level(PLAIN, call=call) == "review"


@pytest.mark.parametrize("wrapped", ["model", "build()", "models[0]"])
def test_a_model_of_which_nothing_is_known(wrapped: str) -> None:
    source = f"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP({wrapped})\n"
    assert [one.level.value for one in findings(source) if one.rule == "FSDP121"] == ["review"]
