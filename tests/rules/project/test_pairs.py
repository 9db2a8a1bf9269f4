"""Models that functions give in pairs, as the items of a registry."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

MAIN = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from registry import Registry
from example import use

registry = Registry()
registry.put("net", FSDP(net))
use(registry)
"""
REGISTRY = """
class Registry:
    def __init__(self):
        self.held = {}

    def put(self, key, thing):
        self.held[key] = thing

    def each(self):
        for key, thing in self.held.items():
            yield key, thing

    def pairs(self):
        return self.held.items()

    def listed(self):
        return [(key, thing) for key, thing in self.held.items()]

    def numbered(self):
        yield from enumerate(self.held.values())
"""


@pytest.mark.parametrize("method", ["each", "pairs", "listed", "numbered"])
@pytest.mark.parametrize(
    "body",
    [
        "    for key, thing in registry.{}():\n        print(thing.module.width)\n",
        "    for key, thing in (\n        registry.{}()\n    ): print(thing.module.width)\n",
        "    return {{\n        key: thing.module.width for key, thing in registry.{}()}}\n",
        "    return [\n        thing.module.width for _, thing in registry.{}()]\n",
    ],
)
def test_a_model_in_pairs_is_followed(method: str, body: str) -> None:
    source = f"def use(registry):\n{body.format(method)}"
    said = [found.rule for found in findings(source, main=MAIN, registry=REGISTRY)]
    assert said == ["FSDP206"]
