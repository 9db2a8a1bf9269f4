"""Modules and tuples that hold wrapped models under names and numbers: over two and three files."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Unchanged
from tests.rules.helpers import rewrite_tree

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
USES = "def keep(core):\n    return core.module.name\n"
MADE = {
    "a comprehension": "torch.nn.ModuleDict({key: FSDP(net) for key, net in nets.items()})",
    "a dictionary": 'torch.nn.ModuleDict({"a": FSDP(nets[0]), "b": FSDP(nets[1])})',
    "a list": "torch.nn.ModuleList([FSDP(net) for net in nets])",
    "a sequence": "torch.nn.Sequential(FSDP(nets[0]), FSDP(nets[1]))",
    "no module": "{key: FSDP(net) for key, net in nets.items()}",
}
READ = {
    "an element": 'keep(nets["a"])',
    "all keys": "for key in nets:\n        keep(nets[key])",
    "all values": "for net in nets.values():\n        keep(net)",
    "all items": "for key, net in nets.items():\n        keep(net)",
}
FIELDS = {
    "names in a text": 'from collections import namedtuple\nState = namedtuple("State", "model steps")\n',
    "names in a list": 'import collections\nState = collections.namedtuple("State", ["model", "steps"])\n',
    "types": 'import typing\nState = typing.NamedTuple("State", [("model", object), ("steps", int)])\n',
    "a class": "from typing import NamedTuple\n\nclass State(NamedTuple):\n    model: object\n    steps: int\n",
}
GIVEN = ["State(FSDP(net), 0)", "State(model=FSDP(net), steps=0)", "base._replace(model=FSDP(net))"]
TAKEN = ["keep(state.model)", "keep(state[0])", "core, steps = state\n    keep(core)"]


def found(files: dict[str, str], **others: str) -> object:
    """What is said about the file that uses the model."""
    trees = {f"{name}.py": text.encode() for name, text in {**files, **others, "uses": USES}.items()}
    result = rewrite_tree(trees).get("uses.py", Unchanged())
    return result if result == Unchanged() else [one.rule for one in result.findings]


def check(files: dict[str, str], made: str) -> None:
    """The file that uses the model has its finding, and none where the model is not wrapped."""
    assert found(files) == ["FSDP206"]
    plain = {name: text.replace(made, made.replace("FSDP(", "(")) for name, text in files.items()}
    assert plain != files
    assert found(plain, other=f"{HEAD}\ndef other(net):\n    return FSDP(net).eval()\n") == Unchanged()


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
@pytest.mark.parametrize("read", READ.values(), ids=READ.keys())
def test_modules_that_hold_models_are_followed(made: str, read: str) -> None:
    one = f"{HEAD}import torch\n\ndef make(nets):\n    return {made}\n"
    main = f"from one import make\nfrom uses import keep\n\ndef run(nets):\n    nets = make(nets)\n    {read}\n"
    check({"one": one, "main": main}, made)


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
@pytest.mark.parametrize("own", [True, False])
def test_modules_that_objects_have_are_followed(made: str, own: bool) -> None:
    used = '    def run(self):\n        keep(self.nets["a"])\n' if own else ""
    one = (
        f"{HEAD}import torch\nfrom uses import keep\n\nclass Job:\n    def __init__(self, nets):\n        self.nets = "
    )
    main = (
        'from one import Job\nfrom uses import keep\n\ndef run(nets):\n    job = Job(nets)\n    keep(job.nets["a"])\n'
    )
    files = {"one": f"{one}{made}\n\n{used}"}
    check(files if own else {**files, "main": main}, made)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS.keys())
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("apart", [True, False])
def test_fields_of_tuples_are_followed(fields: str, given: str, taken: str, apart: bool) -> None:
    kinds = {"kinds": fields} if apart else {}
    head = f"{HEAD}from kinds import State\n" if apart else f"{HEAD}{fields}"
    main = f"from one import make\nfrom uses import keep\n\ndef run(net):\n    state = make(net)\n    {taken}\n"
    check({**kinds, "one": f"{head}\ndef make(net, base=State(None, 0)):\n    return {given}\n", "main": main}, given)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS.keys())
def test_other_fields_of_tuples_are_left_alone(fields: str) -> None:
    one = f"{HEAD}{fields}\ndef make(net, other):\n    return State(FSDP(net), other)\n"
    main = "from one import make\nfrom uses import keep\n\ndef run(net, other):\n    keep(make(net, other).steps)\n"
    assert found({"one": one, "main": main}) == Unchanged()


@pytest.mark.parametrize("inner", [True, False])
def test_elements_of_a_list_that_no_line_of_the_file_makes_are_followed(inner: bool) -> None:
    made = "models[0] = FSDP(models[0])"
    run = "    def each():\n        keep(models[0])\n    each()\n" if inner else "    keep(models[0])\n"
    main = f"{HEAD}from lists import *\nfrom uses import keep\n\ndef make():\n    {made}\n\ndef run():\n{run}"
    check({"lists": "models = []\n", "main": main}, made)
