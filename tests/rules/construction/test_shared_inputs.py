"""FSDP122: inputs that units share, in a tree with the words of cross-attention; the shim adds up as FSDP1 does."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

WRAPS = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{words}

def build(model):
    return FSDP(model)
"""


@pytest.mark.parametrize(
    "words",
    [
        "from transformers.models.t5.modeling_t5 import T5Block",
        "from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer",
        "def forward(x, encoder_hidden_states): ...",
        "class CrossAttention: ...",
    ],
)
def test_said_where_the_words_are(words: str) -> None:
    found = [f for f in findings(WRAPS.format(words=words)) if f.rule == "FSDP122"]
    assert [(f.line, f.level.value) for f in found] == [(6, "review")]
    assert "FSDP122" not in {f.rule for f in findings(WRAPS.format(words=words), Settings(to="shim"))}


def test_said_where_an_imported_file_has_the_words() -> None:
    found = findings(WRAPS.format(words="import layers"), layers="class CrossAttention: ...")
    assert "FSDP122" in {f.rule for f in found}


@pytest.mark.parametrize("words", ["", "from transformers import LlamaDecoderLayer", "attention = 'across'"])
def test_not_said_elsewhere(words: str) -> None:
    assert "FSDP122" not in {f.rule for f in findings(WRAPS.format(words=words))}


MODEL = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * self.up(x)

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x, start=None):
        if start is not None and start.shape == x.shape:
            x = x + start
        return self.up(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gated, self.plain = nn.Embedding(8, 8), Gated(), Plain()
        self.layers = nn.ModuleList(Gated() for _ in range(3))
        self.simple = nn.ModuleList(Plain() for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
{forward}

def build():
    return FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{Gated, Plain}}))
"""

SHARED = {
    "experts": "return sum(layer(x) for layer in self.layers)",
    "parallel": "return self.plain(x) + self.gated(x) + x",
    "around": "return self.gated(x) + x",
    "skips": """
        kept = []
        for layer in self.layers:
            kept.append(x)
            x = layer(x)
        return x + torch.stack(kept).sum(0)""",
    "first of all": """
        x = start = x.tanh()
        for layer in self.simple:
            x = layer(x, start)
        return x""",
    "checkpointed": """
        y = checkpoint(self.gated, x, use_reentrant=False)
        return y * x""",
    "in a function": """
        def run(part, h):
            return part(h) + h
        return run(self.gated, x)""",
    "after hundreds of steps": "\n".join(
        ["x = x + 1", *["        x = x * ids"] * 500, "        return self.gated(x) + x"]
    ),
    "one way of two": """
        if ids.sum() > 0:
            y = self.gated(x)
        else:
            y = self.plain(x)
        return x * y""",
}

APART = {
    "in a row": """
        for layer in self.layers:
            x = layer(x)
        return x""",
    "read before": "return x.tanh() if ids is None else self.gated(x)",
    "read once": "return self.plain(x) + x",
    "asked for its shape": """
        y = self.gated(x)
        return y.view(x.shape).to(x.dtype) + x.detach()""",
    "returned states": """
        states = [x]
        for layer in self.layers:
            x = layer(x)
            states.append(x)
        return x, tuple(states)""",
    "another way": """
        if ids.sum() > 0:
            return self.gated(x)
        return x + 1""",
    "around a norm": "return x + self.gated(x.tanh())",
    "no gradient": """
        with torch.no_grad():
            return self.gated(x) + x""",
}


def written(forward: str) -> str:
    indented = forward if forward.startswith("\n") else f"        {forward}"
    result = rewrite(MODEL.format(forward=indented))
    assert isinstance(result, Changed)
    return result.source.decode()


@pytest.mark.parametrize("forward", SHARED.values(), ids=SHARED)
def test_the_helper_where_an_input_is_read_again_after_a_unit(forward: str) -> None:
    assert "fsdp_compat.shard(" in written(forward)


@pytest.mark.parametrize("forward", APART.values(), ids=APART)
def test_no_helper_where_the_order_is_the_same(forward: str) -> None:
    assert "fsdp_compat" not in written(forward)


BUILD = ("def build():\n    return FSDP(", "class Run:\n    def start(self):\n        return FSDP(")


@pytest.mark.parametrize("build", BUILD)
@pytest.mark.parametrize("forward", [SHARED["experts"], APART["in a row"]])
def test_the_model_is_in_a_file_that_does_not_wrap(forward: str, build: str) -> None:
    indented = forward if forward.startswith("\n") else f"        {forward}"
    nets, _ = MODEL.format(forward=indented).split("def build")
    source = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from nets import Gated, Net, Plain

{build}Net(), auto_wrap_policy=ModuleWrapPolicy({{Gated, Plain}}))
"""
    lines = [line for line in nets.splitlines() if "fsdp" not in line]
    result = rewrite(source, nets="\n".join(lines))
    assert isinstance(result, Changed)
    assert ("fsdp_compat.shard(" in result.source.decode()) == (forward == SHARED["experts"])


@pytest.mark.parametrize(("ran", "helps"), [("with torch.no_grad():", False), ("if ids is not None:", True)])
def test_no_helper_for_a_model_that_never_has_gradients(ran: str, helps: bool) -> None:
    run = f"\ndef evaluate(ids):\n    model = build()\n    {ran}\n        return model(ids)\n"
    result = rewrite(MODEL.format(forward=f"        {SHARED['around']}") + run)
    assert isinstance(result, Changed)
    assert ("fsdp_compat" in result.source.decode()) is helps


BRANCHES = {
    "in a comprehension": "return torch.stack([one(x) for one in self.branches]).sum(0)",
    "in a loop": "y = 0\n        for one in self.branches:\n            y = y + one(x)\n        return y",
    "through another name": "given = x\n        return sum(one(given) for one in self.branches)",
}


@pytest.mark.parametrize("forward", BRANCHES.values(), ids=BRANCHES)
def test_a_unit_that_reads_its_input_in_each_round_of_a_loop(forward: str) -> None:
    unit = "self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))\n\n    def forward(self, x):\n        "
    model = MODEL.replace(
        "self.gate, self.up = nn.Linear(8, 8), nn.Linear(8, 8)\n\n    def forward(self, x):\n"
        "        return torch.sigmoid(self.gate(x)) * self.up(x)",
        unit + forward,
    )
    assert unit in model
    told = [
        "FSDP1 sums the gradients" in "".join(one.message for one in findings(model.format(forward=f"        {body}")))
        for body in ("return self.gated(x) + x", "return self.gated(x)", "return self.plain(x) + x")
    ]
    assert told == [True, False, False]


def test_without_a_policy_the_model_is_the_only_unit() -> None:
    policy = ", auto_wrap_policy=ModuleWrapPolicy({Gated, Plain})"
    shared = MODEL.format(forward=f"        {SHARED['around']}")
    build = f"FSDP(Net(){policy})"
    assert build in shared and "register(Gated)\nregister(Plain)\n" not in shared
    named = f"register(Gated)\nregister(Plain)\n{shared}"
    assert "fsdp_compat" not in text_of(named.replace(policy, ""))
    assert "fsdp_compat.shard(" in text_of(named.replace(policy, ", **arguments"))
    # One that another wrap has made is a unit.
    inner = "net = Net()\n    net.gated = FSDP(net.gated)\n    return FSDP(net)"
    assert "fsdp_compat.shard(" in text_of(named.replace(f"return {build}", inner))


@pytest.mark.parametrize(("made", "helped"), [("DataLoader(data(args))", False), ("prepared(args)", True)])
def test_batches_of_a_loader_have_no_gradient(made: str, helped: bool) -> None:
    source = f"""
import torch
from torch.utils.data import DataLoader
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Net(torch.nn.Module):
    def forward(self, x):
        return self.a(x) + self.b(x)

def train(model, batches):
    for batch in batches:
        x = batch[0].to(0)
        (model(x) - x).sum().backward()

def main(args, prepared):
    train(FSDP(Net()), {made})

main(object.parse_args(), torch.nn.Linear(3, 3))
"""
    assert ("fsdp_compat.shard(" in text_of(source)) is helped


def text_of(source: str) -> str:
    result = rewrite(source)
    assert isinstance(result, Changed)
    return result.source.decode()
