"""Models that DistributedDataParallel or DeepSpeed may wrap as well: what is theirs stays theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite_tree

ROOT = Path(__file__).parents[3] / "rules/fsdp_rules"
WRAP = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
"""
#: How a project wraps a model otherwise.
OTHERS = {
    "ddp": "from torch.nn.parallel import DistributedDataParallel as DDP\n\ndef other(net):\n    return DDP(net)\n",
    "ddp by its module": (
        "import torch.nn as nn\n\ndef other(net):\n    net = nn.parallel.DistributedDataParallel(net, device_ids=[0])\n"
        "    return net\n"
    ),
    "deepspeed": (
        "import deepspeed\n\ndef other(net):\n    engine, _, _, _ = deepspeed.initialize(model=net, config={})\n"
        "    return engine\n"
    ),
    "deepspeed, an element": "import deepspeed\n\ndef other(net):\n    return deepspeed.initialize(model=net)[0]\n",
}
MADE = """
from others import other

def build(kind, net):
    if kind == "one":
        net = FSDP(net)
    else:
        net = other(net)
    return net
"""
#: What is done with the model, and what a model in another wrapper goes on to run.
KEPT = {
    "model.register_comm_hook(None, hook)": "else:\n        model.register_comm_hook(None, hook)",
    "handle = model.register_comm_hook(state=None, hook=hook)": "else model.register_comm_hook(state=None, hook=hook)",
    "if kind in ('one', 'two'):\n        model.register_comm_hook(None, hook)": (
        "else:\n            model.register_comm_hook(None, hook)"
    ),
    "state = model.state_dict()": "else model.state_dict()",
    "torch.save({'model': model.state_dict()}, 'a.pt')": "else model.state_dict()",
    "model.load_state_dict(torch.load('a.pt'))": "else:\n        model.load_state_dict(torch.load('a.pt'))",
    "if kind and other:\n        FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n        "
    "state = model.state_dict()\n    else:\n        state = model.state_dict()": "else model.state_dict()",
    "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        state = model.state_dict()": (
        "else model.state_dict()"
    ),
    "if hasattr(model, 'no_sync'):\n        with model.no_sync():\n            model(x)": (
        "or hasattr(model, 'no_sync')"
    ),
    "can = hasattr(model, 'no_sync') and kind": "or hasattr(model, 'no_sync')) and kind",
    "print(model.module.head)": 'getattr(model, "module", model).head',
    "with FSDP.summon_full_params(model):\n        print(model.head.weight)": "fsdp_compat.summon_full_params(model)",
}


def rewritten(use: str, others: str, made: str = MADE) -> str:
    source = f"{WRAP}{made}\n\ndef run(kind, net, x, hook):\n    model = build(kind, net)\n    {use}\n"
    result = rewrite_tree({"main.py": source.encode(), "others.py": others.encode()})["main.py"]
    assert isinstance(result, Changed)
    return result.source.decode()


def _spaces(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("'", '"')


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("use", KEPT)
def test_a_model_in_another_wrapper_keeps_its_own(use: str, others: str) -> None:
    assert _spaces(KEPT[use]) in _spaces(rewritten(use, others))


@pytest.mark.parametrize("use", KEPT)
def test_a_model_that_nothing_else_wraps_is_rewritten_alone(use: str) -> None:
    alone = "\n\ndef build(kind, net):\n    return FSDP(net)\n"
    text = rewritten(use, "def other(net):\n    return net\n", alone)
    assert "else model." not in text and "isinstance" not in text.replace("isinstance(model, FSDPModule)", "", 1)
    assert "or hasattr" not in text


#: Tests that say that the model is sharded, whatever else may wrap it elsewhere.
SURE = (
    "if kind == 'fsdp':\n        STATEMENT",
    "if use_fsdp and kind:\n        STATEMENT",
    "if isinstance(model, FSDP):\n        STATEMENT",
    "model = FSDP(net)\n    STATEMENT",
)
UNSURE = (
    "if kind != 'fsdp':\n        STATEMENT",
    "if kind in ('fsdp', 'ddp'):\n        STATEMENT",
    "if kind == 'fsdp' or x:\n        STATEMENT",
)


@pytest.mark.parametrize("around", SURE + UNSURE)
def test_a_test_around_says_whether_it_may_be_another(around: str) -> None:
    text = rewritten(around.replace("STATEMENT", "state = model.state_dict()"), OTHERS["ddp"])
    assert ("else model.state_dict()" in _spaces(text)) is (around in UNSURE)


@pytest.mark.parametrize(("use", "rule"), [("register_comm_hook(None, hook)", "FSDP209"), ("state_dict()", "FSDP309")])
def test_what_cannot_be_evaluated_twice_is_left_to_the_reader(use: str, rule: str) -> None:
    said = findings(
        f"{WRAP}\nfrom others import other\n\ndef run(nets, hook, kind, order):\n"
        "    models = [FSDP(net) for net in nets] if kind else [other(net) for net in nets]\n"
        f"    models[next(order)].{use}\n",
        others=OTHERS["ddp"],
    )
    assert [one.level.value for one in said if one.rule == rule] == ["manual"]


#: Files whose rules edit what is done with a model, and why a model in another wrapper runs the same.
HARMLESS = {
    "loop/clip_grad_norm.py": "no other wrapper has the method, so that it only runs for a sharded model",
    "loop/cpu_backend.py": "it edits the start of the process group",
    "loop/forward_hooks.py": "the one hook of its kind runs where it did",
    "loop/forward_methods.py": "register_fsdp_forward_method does nothing for other models",
    "loop/frozen.py": "only parts that are an FSDPModule are resharded",
    "loop/fsdp_modules.py": "only parts that are an FSDPModule are listed, as with FSDP1's classes",
    "loop/gathered.py": "only parts that are an FSDPModule are resharded",
    "loop/grad_scaler.py": "DDP's gradients are the same on all ranks, and so is what either scaler finds in them",
    "loop/_members.py": "no module of another model is in FSDP1's class, so that the test says the same of all",
    "loop/module_questions.py": "the question of other models is still asked",
    "loop/_own_class.py": "the class of another wrapper has no FSDP before its name and is no FSDPModule",
    "loop/native_clip.py": "it edits below the wrap in the same function alone",
    "loop/second_derivatives.py": "what is surely sharded alone is kept gathered",
    "loop/type_checks.py": "a class is asked for",
    "loop/unwrapping.py": "a class is asked for",
    "state/_writing/set.py": "only parts that are an FSDPModule are resharded, and the call itself asks elsewhere",
    "state/dcp_functions.py": "it renames functions that take a dictionary",
    "state/pickled_load.py": "torch.load is called on a file",
    "state/set_state_dict_type.py": "FSDP1's setting does nothing for other models",
    "state/sharded_optimizer.py": "FSDP1's own function loads the states of sharded models alone",
    "state/state_dict_type.py": "FSDP1's context does nothing for other models",
}


def test_every_rule_that_edits_asks_whether_the_model_may_be_another_or_is_harmless() -> None:
    files = [path for room in ("loop", "state", "model") for path in (ROOT / room).rglob("*.py")]
    edits = {str(path.relative_to(ROOT)) for path in files if "edits=" in path.read_text()}
    asks = {name for name in edits if re.search(r"\bother_wrapper\(", (ROOT / name).read_text())}
    assert edits - asks == set(HARMLESS)
