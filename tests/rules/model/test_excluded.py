"""Models that the settings of a run rule out: the other arm of the test under which they are wrapped."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

PROGRAM = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

def wrap_fsdp(model):
    return FSDP(model, use_orig_params=True)

def save(model, args):
    if {test}:
        state = model.state_dict()
    else:
        state = model.module.state_dict()
    torch.save(state, "a.pt")

def main(args, net):
    {choice}
    save(model, args)
    {more}
"""
CHOICES = [
    'model = wrap_fsdp(net) if args.mode == "fsdp" else DDP(net)',
    'if args.mode != "fsdp":\n        model = DDP(net)\n    else:\n        model = wrap_fsdp(net)',
    'if args.mode == "fsdp" and args.shards:\n        model = FSDP(net)\n    else:\n        model = DDP(net)',
]


def _said(test: str, choice: str, more: str = "") -> list[tuple[str, int]]:
    found = findings(PROGRAM.format(test=test, choice=choice, more=more))
    return [(one.rule, one.line) for one in found if one.rule in ("FSDP206", "FSDP309")]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_other_arm_is_that_of_another_wrapper(choice: str) -> None:
    assert _said('args.mode == "fsdp"', choice) == [("FSDP309", 11)]


@pytest.mark.parametrize(
    ("test", "choice", "more"),
    [
        ('args.mode == "hsdp"', CHOICES[0], ""),
        ('args.kind == "fsdp"', CHOICES[0], ""),
        ('args.mode == "fsdp" and args.main', CHOICES[0], ""),
        ('args.mode == "fsdp"', CHOICES[0].replace("args.mode", "other.mode"), ""),
        ('args.mode == "fsdp"', CHOICES[0], 'args.mode = "ddp"\n    save(model, args)'),
        ('args.mode == "fsdp"', "model = wrap_fsdp(net)", ""),
    ],
)
def test_another_test_rules_nothing_out(test: str, choice: str, more: str) -> None:
    assert ("FSDP206", 13) in _said(test, choice, more)


ONE_FUNCTION = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(model):
    return FSDP(model, use_orig_params=True)

def main(net, path, many, ranks):
    several = ranks > 1
    model = net
    {wrap}
    {load}

main(torch.nn.Linear(2, 2), "a.pt", True, 2)
{more}
"""
#: Where the model is wrapped, and where it surely is not.
ARMS = [
    ("if several:\n        model = FSDP(net)", "if not several:\n        model.load_state_dict(torch.load(path))"),
    ("model = wrap(net) if many else net", "if many:\n        return\n    model.load_state_dict(torch.load(path))"),
    (
        "if path and many:\n        model = wrap(net)",
        "for each in (1, 2):\n        if each and not many:\n            model.load_state_dict(torch.load(path))",
    ),
]


def _loads(wrap: str, load: str, more: str = "") -> bool:
    return any(one.rule == "FSDP309" for one in findings(ONE_FUNCTION.format(wrap=wrap, load=load, more=more)))


@pytest.mark.parametrize(("wrap", "load"), ARMS)
def test_a_name_that_keeps_its_value_is_a_setting(wrap: str, load: str) -> None:
    assert not _loads(wrap, load)
    assert _loads(wrap, load.replace("not ", "").replace("return", "pass"))


KEPT = "KEPT = {}\ndef kept():\n    return KEPT[0]"
LOOP = "for several in path:\n        if several:\n            model = FSDP(net)\n        path.clear()"


@pytest.mark.parametrize(
    ("wrap", "load", "more"),
    [
        # A model that is wrapped elsewhere.
        (*ARMS[0], "main(FSDP(torch.nn.Linear(2, 2)), '', False, 1)"),
        # Another value, or one that may be changed.
        (f"{ARMS[0][0]}\n    several = path", ARMS[0][1], ""),
        (LOOP, ARMS[0][1], ""),
        (ARMS[1][0], f"many.clear()\n    {ARMS[1][1]}", ""),
        # A call before, with another value, gave the model back, or left it in what it was given.
        (
            ARMS[0][0],
            f"{ARMS[0][1]}\n    return model".replace("model.load", "net.load"),
            "main(main(1, 2, 3, 4), 2, 3, 0)",
        ),
        (ARMS[0][0].replace("model =", "net.own ="), ARMS[0][1].replace("model.load", "net.own.load"), ""),
        # The same, by a name that the function gives it.
        (
            ARMS[0][0].replace("model =", "net.own ="),
            ARMS[0][1].replace("model.load", "model = net.own; model.load"),
            "",
        ),
        (
            ARMS[0][0].replace("model =", "KEPT[0] ="),
            ARMS[0][1].replace("model.load", "model = KEPT[0]; model.load"),
            KEPT,
        ),
        (
            ARMS[0][0].replace("model =", "KEPT[0] ="),
            ARMS[0][1].replace("model.load", "model = kept(); model.load"),
            KEPT,
        ),
    ],
)
def test_a_name_that_may_have_had_another_value_is_none(wrap: str, load: str, more: str) -> None:
    assert _loads(wrap, load, more)


SCRIPT = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from ranks import get_world_size

model = torch.nn.Linear(2, 2)
world_size = get_world_size()
if {test}:
    model = FSDP(model)
if {again}:
    state = {{}}
else:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    state = model.state_dict()
torch.save(state, "a.pt")
"""


@pytest.mark.parametrize(
    "test", ["get_world_size() > 1", "world_size > 1", "dist.get_world_size() != 1", "args.z == 3"]
)
def test_a_number_rules_out(test: str) -> None:
    assert {one.line for one in findings(SCRIPT.format(test=test, again=test)) if one.line > 9} == set()


@pytest.mark.parametrize(
    ("test", "again"),
    [
        ("get_world_size() > 1", "get_world_size() > 2"),
        ("world_size > 1", "world_size >= 1"),
        ("read() > 1", "read() > 1"),
        ("get_world_size(group) > 1", "get_world_size(group) > 1"),
    ],
)
def test_another_number_rules_nothing_out(test: str, again: str) -> None:
    found = {one.rule for one in findings(SCRIPT.format(test=test, again=again)) if one.line > 9}
    assert found == {"FSDP215", "FSDP309"}
