"""FSDP901: FSDP1's class as a value, by what the tree does with it in the end."""

from __future__ import annotations

import re

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

HEAD = """
import functools

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

"""
#: Programs, each under its name.
CALLED = dict(
    re.findall(
        r"# (.+)\n((?:(?!# ).*\n)+)",
        """
# a table
TABLE = {"ddp": DDP, "fsdp": FSDP}

def wrap(net, args):
    return TABLE[args.kind](net, **args.kw)
# a table of a class
class Trainer:
    table = {"ddp": DDP, "fsdp": FSDP}

    def wrap(self, net, args):
        return self.table[args.kind](net)
# a default
def wrap(net, cls=FSDP, **kw):
    return cls(net, **kw)

def main(net, args):
    return wrap(net, DDP), wrap(net, **args)
# a choice
def wrap(net, args):
    cls = FSDP if args.fsdp else DDP
    return cls(net)
# a result
def chosen(args):
    if args.fsdp:
        return FSDP
    return DDP

def wrap(net, args):
    return chosen(args)(net)
# an attribute of an object
class Trainer:
    def __init__(self, net, args):
        self.wrapper = FSDP if args.fsdp else DDP
        self.net = self.wrapper(net)
# a partial object
def wrap(net, args, cls=FSDP):
    make = functools.partial(cls, **args.kw)
    return make(net)

def main(net, args):
    return wrap(net, args), wrap(net, args, DDP)
# a registry
TABLE = {}

def register(name, cls):
    TABLE[name] = cls

register("fsdp", FSDP)
register("ddp", DDP)

def wrap(net, args):
    return TABLE[args.kind](net)
# a class that is asked for by its name
def wrap(net, args):
    cls = FSDP if args.fsdp else DDP
    model = cls(net)
    assert isinstance(model, (DDP, FSDP))
    return model
""",
    )
)
OTHERWISE = {
    "it is asked for by another name": "    assert isinstance(model, cls)\n",
    "its name is read": "    print(cls.__name__)\n",
    "it goes to code that is not seen": "    args.register(cls)\n",
    "it is compared": "    print(cls is args.cls)\n",
    "it is printed": "    print(cls)\n",
    "it is a base class": "    class Other(cls):\n        pass\n",
    "its method is called": "    cls.set_state_dict_type(model, args.kind)\n",
    "it is in a table that is asked for": "    kinds = (cls, DDP)\n    assert isinstance(model, kinds)\n",
}


#: Classes that have it as an attribute: a function there would become a method.
ATTRIBUTES = {
    "written": "class Trainer:\n    wrapper = FSDP\n\n    def wrap(self, net):\n        return self.wrapper(net)\n",
    "annotated": (
        "class Trainer:\n    wrapper: type = FSDP\n\n    def wrap(self, net):\n        return self.wrapper(net)\n"
    ),
    "set": (
        "class Trainer:\n    def wrap(self, net):\n        return self.wrapper(net)\n\n"
        "def main(args):\n    Trainer.wrapper = FSDP if args.fsdp else DDP\n    return Trainer()\n"
    ),
}


@pytest.mark.parametrize("body", ATTRIBUTES.values(), ids=ATTRIBUTES.keys())
def test_no_class_gets_a_function_in_its_place(body: str) -> None:
    assert Level.MANUAL in {one.level for one in findings(HEAD + body) if one.rule == "FSDP901"}


@pytest.mark.parametrize("body", CALLED.values(), ids=CALLED.keys())
def test_what_is_only_called_is_the_helper(body: str) -> None:
    result = rewrite(HEAD + body)
    assert isinstance(result, Changed)
    assert "fsdp_compat.shard" in result.source.decode()
    assert [one.level for one in result.findings if one.rule == "FSDP901"] == [Level.REVIEW]


@pytest.mark.parametrize("more", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_what_else_is_done_with_it_keeps_it(more: str) -> None:
    body = f"def wrap(net, args):\n    cls = FSDP if args.fsdp else DDP\n    model = cls(net)\n{more}    return model\n"
    assert Level.MANUAL in {one.level for one in findings(HEAD + body) if one.rule == "FSDP901"}


def test_what_nothing_calls_is_kept() -> None:
    assert [one.level for one in findings(HEAD + 'TABLE = {"fsdp": FSDP}\n')] == [Level.MANUAL]


def test_without_helpers_it_is_kept() -> None:
    found = findings(HEAD + CALLED["a choice"], Settings(helpers="never"))
    assert [one.level for one in found if one.rule == "FSDP901"] == [Level.MANUAL]


def test_another_file_that_asks_for_it_keeps_it() -> None:
    other = (
        "from example import TABLE\n\ndef is_wrapped(model, args):\n    return isinstance(model, TABLE[args.kind])\n"
    )
    found = findings(HEAD + CALLED["a table"], asking=other)
    assert [one.level for one in found if one.rule == "FSDP901"] == [Level.MANUAL]
