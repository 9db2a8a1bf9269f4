"""Rule for methods of a model that are called on FSDP1's class."""

from __future__ import annotations

from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT


class ClassCalls(Rule):
    """Methods called on FSDP's class.

    `FSDP.no_sync(model)` is `model.no_sync()`, and an FSDP2 model is not an instance of FSDP1's class. Every such call
    becomes one on the model first, and then what the method itself becomes: the other rules report that. Calls on
    `self`, which a subclass makes, are not changed.
    """

    id = "FSDP236"
    name = "class-calls"
    shim = True
    what_to_test = EFFECT
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, batch):
    model = FSDP(model)
    FSDP.train(model)
    return FSDP.forward(model, batch)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def train(model, batch):
    fully_shard(model)
    model.train()
    return model(batch)
"""
    #: What is said of each call.
    message = "an FSDP2 model is not an instance of FSDP1's class, so the method is called on the model itself"
