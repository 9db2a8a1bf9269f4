"""Attributes that ``__getattr__`` gives, objects that are lists, and names of methods that are put together."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

MAIN = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from events import Events, Shadow

def evaluate(model, x):
    with torch.no_grad():
        return model(x).sum().item()

def train(net, batches):
    model = FSDP(net, use_orig_params=True)
    events = Events([Shadow(model, evaluate)])
    for x in batches:
        events.on_end(model=model, x=x)
"""
EVENTS = """
class Events(list):
    def __getattr__(self, event):
        def fire(**kwargs):
            for one in self:
                getattr(one, event)(**kwargs)
        return fire

class Shadow:
    def __init__(self, model, evaluate):
        self.model, self.evaluate = model, evaluate

    def on_end(self, model, x):
        self.evaluate(model, x)
        return [p.detach().clone() for p in model.parameters()]
"""
TOGETHER = """
class Events:
    def __init__(self, several):
        self.several = several

    def on_end(self, **kwargs):
        self.fire("end", **kwargs)

    def fire(self, event, **kwargs):
        for one in self.several:
            getattr(one, "on_" + event)(**kwargs)
"""


@pytest.mark.parametrize("how", ["getter", "together"])
def test_methods_that_are_called_so_read_parameters(how: str) -> None:
    shadow = EVENTS[EVENTS.index("class Shadow") :]
    source = EVENTS if how == "getter" else TOGETHER + shadow
    main = MAIN.replace("from events", "from example")
    found = {(one.rule, one.level.value) for one in findings(source, main=main)}
    assert ("FSDP220", "safe") in found
    assert findings(source, main=main.replace("FSDP(net, use_orig_params=True)", "net")) == ()


SECTION = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.units = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

class Context:
    def __init__(self, section):
        self.section = section
        self._model = None

    def __getattr__(self, name):
        return self.section[name]

    @property
    def model(self):
        if self._model is None:
            self._model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), use_orig_params=True)
        return self._model

    def save(self):
        with FSDP.summon_full_params(self.model, writeback=False):
            state = {n: p.detach().clone() for n, p in self.model.module.named_parameters()}
        torch.save(state, "a.pt")

def main(read):
    Context(read()["train"]).save()
"""


def test_what_init_sets_is_not_looked_up_by_a_getter() -> None:
    assert [one.level.value for one in findings(SECTION) if one.rule == "FSDP207"] == ["manual"]
    late = SECTION.replace("        self._model = None\n", "")
    assert [one.level.value for one in findings(late) if one.rule == "FSDP207"] == ["review"]
