"""Functions that give back what they are given: each caller has its own model back."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from shared import load

def main(net, optimizer):
    model = FSDP(net, use_orig_params=True)
    {call}
    return model.module.config
"""
OTHER = """
import torch
from shared import load

def run(build):
    network = build()
    optimizer = torch.optim.AdamW(network.parameters())
    {call}
    total = sum(p.grad.pow(2).sum() for p in network.parameters())
    return network.module, total
"""
CALLS = {
    "one": ("{new} = load({model}, optimizer)", "def load(m, o):\n    return m\n"),
    "two": ("{new}, optimizer = load({model}, optimizer)", "def load(m, o):\n    return m, o\n"),
    "keyword": ("{new} = load(o=optimizer, m={model})", "def load(m, o):\n    x = m\n    return x\n"),
    "early": (
        "{new}, optimizer = load({model}, optimizer)",
        "def load(m, o):\n    if o is None:\n        return m, None\n    m.load(o)\n    return m, o\n",
    ),
    "method": (
        "{new} = load({model}, optimizer)",
        "class Loader:\n    def __call__(self, m):\n        return m\n\n\ndef load(m, o):\n    return m\n",
    ),
}


def rules(source: str, **others: str) -> list[str]:
    return [found.rule for found in findings(source, **others) if found.level.value in ("manual", "review")]


@pytest.mark.parametrize("form", CALLS)
def test_the_model_of_one_program_is_not_that_of_another(form: str) -> None:
    call, shared = CALLS[form]
    one = FSDP1.format(call=call.format(new="model", model="model"))
    other = OTHER.format(call=call.format(new="network", model="network"))
    assert rules(other, one=one, shared=shared) == []
    kept = FSDP1.format(call=call.format(new="loaded", model="model")).replace("model.module", "loaded.module")
    assert "FSDP206" in [found.rule for found in findings(kept, other=other, shared=shared)]


@pytest.mark.parametrize(
    "shared",
    [
        f"{IMPORT}\n\ndef load(m, o):\n    return FSDP(m)\n",
        "from other import wrap\n\n\ndef load(m, o):\n    m = wrap(m)\n    return m\n",
        "models = []\n\n\ndef load(m, o):\n    models.append(m)\n    return models[-1]\n",
    ],
)
def test_what_may_be_another_model_is_followed(shared: str) -> None:
    call = "network = load(network, optimizer)"
    wraps = f"{IMPORT}\n\ndef wrap(m):\n    return FSDP(m)\n"
    one = FSDP1.format(call="model = load(model, optimizer)")
    assert rules(OTHER.format(call=call), one=one, shared=shared, other=wraps) != []


def test_a_part_that_is_wrapped_in_the_function_is_followed() -> None:
    shared = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def load(m, o):
    m.head = FSDP(m.head, use_orig_params=True)
    return m
"""
    source = """
from shared import load

def run(net):
    net = load(net, None)
    return net.head.module.weight
"""
    assert "FSDP206" in [found.rule for found in findings(source, shared=shared)]
