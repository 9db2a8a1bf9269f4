"""FSDP206, 210 and 309: what is asked of a model that a call gives, so that it has no name."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_findings, findings

MADE = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Engine:
    def __init__(self, net):
        self.brain = FSDP(net, use_orig_params=True)
        self.optimizer = net.optimizer

class Outer:
    def __init__(self, net):
        self.engine = Engine(net)

def make(net):
    return Engine(net)

def around(net):
    return Outer(net)

def build(net):
    return FSDP(net, use_orig_params=True)

def plain(net):
    return net
"""


@pytest.mark.parametrize(
    ("taken", "rules"),
    [
        ("make(net).brain.state_dict()", ["FSDP309"]),
        ("make(net).brain.module.state_dict()", ["FSDP206", "FSDP309"]),
        ("build(net).state_dict()", ["FSDP309"]),
        ("build(net).load_state_dict(net)", ["FSDP309"]),
        ("around(net).engine.brain.state_dict()", ["FSDP309"]),
        ("make(net).brain.module.config", ["FSDP206"]),
        ("build(net).module", ["FSDP206"]),
    ],
)
def test_it_is_said(taken: str, rules: list[str]) -> None:
    source = f"from made import around, build, make\n\ndef save(net):\n    return {taken}\n"
    found = findings(source, made=MADE)
    assert sorted((one.rule, one.level.value, one.line) for one in found) == [(rule, "manual", 4) for rule in rules]
    assert all(taken.startswith(one.message.partition(" ")[0]) for one in found)


@pytest.mark.parametrize("model", ["make(net).brain", "build(net)"])
def test_its_forward_is_a_call(model: str) -> None:
    (found,) = findings(f"from made import build, make\n\ndef run(net, x):\n    return {model}.forward(x)\n", made=MADE)
    assert (found.rule, found.level.value, found.line) == ("FSDP210", "review", 4)


@pytest.mark.parametrize(
    "taken",
    ["make(net).optimizer.state_dict()", "plain(net).state_dict()", "accelerator.build(net).state_dict()"],
)
def test_other_states_are_left_alone(taken: str) -> None:
    check_findings(f"from made import make, plain\n\ndef save(net, accelerator):\n    {taken}\n", set(), made=MADE)


def test_a_name_for_it_is_followed() -> None:
    source = "from made import make\n\ndef save(net):\n    brain = make(net).brain\n    return brain.state_dict()\n"
    (found,) = findings(source, made=MADE)
    assert (found.rule, found.level.value) == ("FSDP309", "safe")


MEMBERS = """
class Members:
    def __init__(self):
        self.all = []

    def add(self, member):
        self.all.append(member)
        return self

    def first(self):
        return self.all[0]
"""


@pytest.mark.parametrize(
    ("taken", "rules"),
    [
        ("where.module.out.state_dict()", ["FSDP206", "FSDP309"]),
        ("where.module.out.load_state_dict(state)", ["FSDP206", "FSDP309"]),
        ("where.clock", []),
    ],
)
def test_a_part_behind_the_wrapper_that_a_container_may_hold(taken: str, rules: list[str]) -> None:
    source = f"def keep(members, state):\n    where = members.first()\n    return {taken}\n"
    main = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom members import Members\n\n"
    found = findings(source, main=f"{main}held = Members().add(FSDP(net))\n", members=MEMBERS)
    assert sorted(one.rule for one in found if one.rule in ("FSDP206", "FSDP309")) == rules
    assert {one.level.value for one in found} <= {"review"}


def test_any_part_of_what_a_container_may_hold_may_be_a_model() -> None:
    source = "def keep(members, state):\n    where = members.first()\n    return where.clock.state_dict()\n"
    main = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom members import Members\n\n"
    found = findings(source, main=f"{main}held = Members().add(FSDP(net))\n", members=MEMBERS)
    assert [(one.rule, one.level.value) for one in found] == [("FSDP309", "manual")]
