"""Models that methods of another object wrap, of which a run has one alone: strategies that a table gives."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

STRATEGIES = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

class Strategy:
    def clip(self, module, value):
        return torch.nn.utils.clip_grad_norm_(module.parameters(), value)

class Replicated(Strategy):
    def setup(self, module):
        return DDP(module)

    def state(self, module):
        return module.module.state_dict()

    def no_sync(self, module):
        return module.no_sync()

class Sharded(Strategy):
    def setup(self, module):
        return FSDP(module, use_orig_params=True)

    def clip(self, module, value):
        return module.clip_grad_norm_(value)

    def state(self, module):
        return {state}.state_dict()

    def no_sync(self, module):
        return module.no_sync()

TABLE = {{"ddp": Replicated, "fsdp": Sharded}}
"""
LOOP = """
from example import Replicated, Sharded, TABLE

class Loop:
    def __init__(self, strategy, net):
        self.strategy = strategy
        self.model = strategy.setup(net)

    def run(self, batches):
        for batch in batches:
            with self.strategy.no_sync(self.model):
                self.model(batch).sum().backward()
            self.strategy.clip(self.model, 1.0)
        return {end}

def main(name, net, batches):
    return Loop({made}, net).run(batches)
"""


def said(made: str, state: str = "module", end: str = "self.strategy.state(self.model)") -> set[tuple[str, int]]:
    """Rules and lines of what is said of the strategies, but for the wrap itself."""
    found = findings(STRATEGIES.format(state=state), loop=LOOP.format(made=made, end=end))
    return {(one.rule, one.line) for one in found if one.rule > "FSDP2"}


def test_a_method_of_another_strategy_gets_no_sharded_model() -> None:
    # no_sync() is one of the names that speak for FSDP1's class, and both have it.
    assert said("TABLE[name]()") == {("FSDP201", 25), ("FSDP309", 28), ("FSDP202", 18), ("FSDP202", 31)}
    done = rewrite(STRATEGIES.format(state="module"), loop=LOOP.format(made="TABLE[name]()", end="self.model"))
    assert isinstance(done, Changed)
    assert "return module.module.state_dict()" in done.source.decode()


@pytest.mark.parametrize(
    ("made", "state", "end", "expected"),
    [
        # The strategy that wraps takes the state itself.
        ("TABLE[name]()", "module.module", "self.strategy.state(self.model)", ("FSDP206", 28)),
        # Another object of the program is given the model.
        ("TABLE[name]()", "module", "Replicated().state(self.model)", ("FSDP206", 15)),
        ("Sharded()", "module", "TABLE['ddp']().state(self.model)", ("FSDP206", 15)),
        # Two calls make the two.
        ("Sharded() if name else Replicated()", "module", "self.strategy.state(self.model)", ("FSDP206", 15)),
    ],
)
def test_what_may_get_it_is_reported(made: str, state: str, end: str, expected: tuple[str, int]) -> None:
    assert expected in said(made, state, end)
