"""Objects that a function has made itself, of a class whose attribute another file wraps: not sharded there yet."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

FSDP1 = "import torch\nimport torch.nn as nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
MAIN = f"""{FSDP1}
from example import Box

class Run:
    def __init__(self, cfg):
        self.box = Box(cfg)
        self.box.core = FSDP(self.box.core, use_orig_params=True)
"""
NETS = """
import torch.nn as nn

class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    @classmethod
    def from_pretrained(cls, cfg):
        return cls(cfg)

def kind(cfg):
    return lambda: Net(cfg)
"""
ABOVE = f"""{FSDP1}
import ext
from nets import Net, kind

def wrap_all(box):
    box.core = FSDP(box.core)

def make(cfg):
    return FSDP(Net(cfg))

def outer(cfg):
    def inner():
        return FSDP(Net(cfg))
    return inner

TABLE = dict(own=make)

class Holder:
    def __init__(self, cfg):
        self.part = FSDP(Net(cfg))

class Box(nn.Module):
    def __init__(self, cfg, given=None):
        super().__init__()
        {{made}}
        {{use}}

    def shard(self):
        self.core = FSDP(self.core)
"""
USES = {
    "FSDP229": "self.core.head = nn.Linear(3, 3)",
    "FSDP309": "self.core.load_state_dict(cfg.state)",
    "FSDP210": "self.core.forward = cfg.forward",
    "FSDP218": "self.core.requires_grad_(False)",
    "FSDP226": "self.core.reset_parameters()",
}
CHOICE = "if cfg.new:\n            self.core = {}\n        {}"
PLAIN = {
    "its class": "self.core = Net(cfg)",
    "a factory": "self.core = kind(cfg)()",
    "a library": "self.core = ext.AutoModel.from_pretrained(cfg.path)",
    "methods behind it": "self.core = Net(cfg).to(cfg.device).eval()",
    "either way": CHOICE.format("Net(cfg)", "else:\n            self.core = Net(cfg).eval()"),
    "one way": CHOICE.format(
        "Net(cfg)", "elif cfg.old:\n            self.core = kind(cfg)()\n        else:\n            raise E"
    ),
    "a constructor of its class": "self.core = Net.from_pretrained(cfg)",
    "methods of its own": "self.core = Net(cfg)\n        self.core.train()\n        print(self.core.inner)",
}
#: What may have wrapped it in between, or have made it as a wrapped one.
WRAPPED = {
    "given away": "self.core = Net(cfg)\n        wrap_all(self)",
    "a method": "self.core = Net(cfg)\n        self.shard()",
    "another package": "self.core = ext.prepare(Net(cfg))",
    "some ways": "if cfg.new:\n            self.core = Net(cfg)",
    "one of two ways": CHOICE.format("Net(cfg)", "else:\n            self.core = make(cfg)"),
    "two of three ways": CHOICE.format("Net(cfg)", "elif cfg.old:\n            self.core = Net(cfg)"),
    "the other way": CHOICE.format("Net(cfg)", "else:\n            pass"),
    "a loop": "self.core = Net(cfg)\n        for _ in range(2):\n            self.core = make(self.core)",
    "its maker": "self.core = make(cfg)",
    "a closure": "self.core = outer(cfg)()",
    "compiled": "self.core = make(cfg)\n        self.core = torch.compile(self.core)",
    "a table": "self.core = TABLE.get(cfg.kind)(cfg)",
    "a callback": "self.core = given(cfg)",
    "a stored callback": "self.maker = given\n        self.core = self.maker(cfg)",
}


def rules(made: str, use: str, to: str = "native") -> set[str]:
    source = ABOVE.format(made=made, use=use)
    return {each.rule for each in findings(source, Settings(to=to), main=MAIN, nets=NETS)}


@pytest.mark.parametrize("made", PLAIN.values(), ids=PLAIN.keys())
@pytest.mark.parametrize(("rule", "use"), USES.items())
def test_it_is_not_sharded_yet(rule: str, use: str, made: str) -> None:
    assert rule not in rules(made, use)


@pytest.mark.parametrize("made", WRAPPED.values(), ids=WRAPPED.keys())
@pytest.mark.parametrize("rule", ["FSDP229", "FSDP309"])
def test_it_may_be_sharded(rule: str, made: str) -> None:
    assert rule in rules(made, USES[rule])


def test_a_loop_leads_back_to_it() -> None:
    use = "for _ in range(2):\n            self.core.head = nn.Linear(3, 3)\n            {last}"
    assert "FSDP229" in rules("self.core = Net(cfg)", use.format(last="self.shard()"))
    assert "FSDP229" not in rules("self.core = Net(cfg)", use.format(last="self.core.train()"))


@pytest.mark.parametrize(("made", "speaks"), [("Net(cfg)", False), ("Holder(cfg)", True)])
def test_a_part_of_it(made: str, speaks: bool) -> None:
    use = f"self.core.{'part' if speaks else 'inner'}.head = nn.Linear(3, 3)"
    assert ("FSDP229" in rules(f"self.core = {made}", use)) is speaks


def test_another_method_uses_the_sharded_one() -> None:
    use = f"pass\n\n    def late(self):\n        {USES['FSDP229']}"
    assert "FSDP229" in rules("self.core = Net(cfg)", use)


def test_the_other_arm_of_a_choice_is_another_way() -> None:
    use = "if cfg.new:\n            self.core = Net(cfg)\n        else:\n            self.core.head = nn.Linear(3, 3)"
    assert "FSDP229" in rules("self.shard()", use)


@pytest.mark.parametrize(
    "value", ["FSDP(self.core.inner)", "self.core.inner.to(cfg.device).eval()", "self.core.inner.float()"]
)
def test_a_part_that_stays_the_same(value: str) -> None:
    assert "FSDP229" not in rules("self.core = Net(cfg)", f"wrap_all(self)\n        self.core.inner = {value}")


@pytest.mark.parametrize(("value", "speaks"), [("FSDP(self.core.inner)", False), ("nn.Linear(3, 3)", True)])
def test_a_part_that_is_wrapped_in_its_place(value: str, speaks: bool) -> None:
    use = f"wrap_all(self)\n        self.core.inner = {value}"
    assert ("FSDP229" in rules("self.core = Net(cfg)", use)) is speaks
