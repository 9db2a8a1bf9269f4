"""Methods of a base class that nothing calls: an object of a class below may run them."""

from __future__ import annotations

import pytest

from fsdp_rules.project.flow import Certainty
from fsdp_rules.values.by_position import facts_of

LOOP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from {0} import {1}


class Loop({1}):
    def __init__(self, net):
        self.net = FSDP(net)
        self.kept = list(self.net.parameters())
"""
BASE = """\
class Base:
    def norms(self):
        return [p.grad.norm() for p in self.kept]


class Beside:
    def norms(self):
        return [p.grad.norm() for p in self.kept]
"""
MIDDLE = "from base import Base\n\n\nclass Middle(Base):\n    pass\n"


@pytest.mark.parametrize("bases", [("base", "Base"), ("middle", "Middle")])
def test_what_a_class_has_is_known_in_its_bases_alone(bases: tuple[str, str]) -> None:
    files = {"loop.py": LOOP.format(*bases).encode(), "base.py": BASE.encode(), "middle.py": MIDDLE.encode()}
    facts = facts_of(files, ["loop.py"], ["loop.py"])
    gradients = {place[0] for place, fact in facts.known["base.py"].items() if fact.gradient is Certainty.YES}
    assert gradients == {3}
