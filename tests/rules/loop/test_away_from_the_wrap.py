"""What a file does with the parameters of a model that another file wraps, for FSDP2 and with the shim."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Level
from tests.rules.helpers import findings

MAIN = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from example import use

def main(net):
    core = FSDP(net, use_orig_params=True)
    use({given})
"""
#: What the other file is, and the rule that leaves it to a human.
FILES = {
    "NO_DECAY = {'norm.weight', 'head.bias'}\ndef use(brain):\n"
    "    return [w for n, w in brain.named_parameters() if n in NO_DECAY]\n": "FSDP207",
    "NO_DECAY = frozenset(['norm.weight'])\ndef use(brain):\n    kept = []\n"
    "    for n, w in brain.named_parameters():\n        if n not in NO_DECAY:\n            kept.append(w)\n": "FSDP207",
    "RATES = {'norm.weight': 0.1}\ndef use(brain):\n"
    "    return [{'params': [w], 'lr': RATES.get(n, 1.0)} for n, w in brain.named_parameters()]\n": "FSDP207",
    "import torch\ndef use(brain):\n"
    "    for w in brain.parameters():\n        w.data.add_(torch.randn_like(w))\n": "FSDP226",
    "import torch\ndef use(brain):\n"
    "    for w in brain.parameters():\n        w.data.mul_(torch.bernoulli(w))\n": "FSDP226",
    "import torch.distributed as dist\ndef use(tensors):\n"
    "    for t in tensors:\n        dist.broadcast(t.detach(), 0)\n": "FSDP222",
    "import torch\ndef use(brain):\n    brain.head.weight = torch.nn.Parameter(torch.ones(3, 6))\n": "FSDP217",
    "def use(brain):\n    brain.head.weight = brain.embed.weight\n": "FSDP217",
}
HARMLESS = (
    "NAMES = {'norm.weight'}\ndef use(brain):\n    return [n for n in brain.state_dict() if n in NAMES]\n",
    "NAMES = ['bias']\ndef use(brain):\n"
    "    return [w for n, w in brain.named_parameters() if any(nd in n for nd in NAMES)]\n",
    "import torch\ndef use(brain):\n    return brain(torch.randn_like(torch.ones(2, 6)))\n",
    "def use(brain):\n    brain.weight_decay = 1.0\n",
)


def left(source: str, to: str) -> set[str]:
    given = "list(core.parameters())" if "tensors" in source else "core"
    found = findings(source, Settings(to=to), main=MAIN.format(given=given))
    return {each.rule for each in found if each.level is Level.MANUAL}


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(("source", "rule"), FILES.items())
def test_it_is_left_to_a_human(source: str, rule: str, to: str) -> None:
    assert rule in left(source, to)


@pytest.mark.parametrize("source", HARMLESS)
def test_what_is_harmless_is_not(source: str) -> None:
    assert left(source, "native") & set(FILES.values()) == set()
