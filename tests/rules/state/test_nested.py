"""FSDP301 and 309: functions that are defined in a block which sets the kind of state, or are called in it."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_rewrites, findings

IMPORTS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
"""
BLOCK = IMPORTS + "\ndef save(model, path):\n    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
ELSEWHERE = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

def other(model):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
"""


def messages(source: str, rule: str) -> list[str]:
    """What findings of level manual by ``rule`` say about ``source``."""
    return [found.message for found in findings(source) if found.rule == rule and found.level.value == "manual"]


def test_a_function_that_only_the_block_calls_belongs_to_it() -> None:
    check_rewrites(
        f"""{BLOCK}
        def state():
            return model.state_dict()

        def write():
            torch.save(state(), path)

        write()
""",
        """\
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict

def save(model, path):

    def state():
        return get_model_state_dict(model)

    def write():
        torch.save(state(), path)

    write()
""",
        elsewhere=ELSEWHERE,
    )


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("        def state():\n            return model.state_dict()\n        run(state)\n", "state"),
        ("        def state():\n            return model.state_dict()\n        state()\n    state()\n", "state"),
        ("        @run\n        def state():\n            return model.state_dict()\n        state()\n", "state"),
        ("        async def state():\n            return model.state_dict()\n        run(state())\n", "state"),
        ("        state = lambda: model.state_dict()\n        state()\n", "a lambda"),
        (
            "        def state():\n            return model.state_dict()\n"
            "        def all():\n            return [state()]\n        run(all)\n",
            "state",
        ),
        ("        def state():\n            return FSDP.optim_state_dict(model, optim)\n        run(state)\n", "state"),
    ],
)
def test_a_function_that_may_run_after_the_block_keeps_all_of_it(body: str, name: str) -> None:
    said = messages(BLOCK + body, "FSDP301")
    assert len(said) == 1 and said[0].startswith(f"{name} is defined here")
    check_rewrites(
        BLOCK + body,
        (BLOCK + body).replace("    with", f"    # TODO(fsdp-migrate FSDP301): {said[0]}\n    with"),
    )


def test_a_model_of_the_function_s_own_is_not_taken_for_the_block_s() -> None:
    body = "        def write(model):\n            torch.save(model.state_dict(), path)\n        write(net)\n"
    assert messages(BLOCK + body, "FSDP301") == [
        "model may be a different model from the one whose state dict type is set"
    ]


@pytest.mark.parametrize(
    ("made", "loops"),
    [
        (
            "(torch.optim.SGD(models[0].parameters(), lr=0.1), torch.optim.Adam(models[1].parameters()))",
            "for j in range(2):",
        ),
        ("{k: torch.optim.SGD(m.parameters(), lr=0.1) for k, m in enumerate(models)}", "for j in sorted(optims):"),
    ],
)
def test_an_element_of_several_optimizers_is_no_model(made: str, loops: str) -> None:
    source = f"""{IMPORTS}
def main(nets, states):
    models = [FSDP(net) for net in nets]
    optims = {made}
    {loops}
        with FSDP.state_dict_type(models[j], StateDictType.FULL_STATE_DICT):
            models[j].load_state_dict(states[j]["model"])
            optims[j].load_state_dict(FSDP.optim_state_dict_to_load(models[j], optims[j], states[j]["optim"]))
"""
    assert messages(source, "FSDP301") == []
    assert "FSDP305" in {found.rule for found in findings(source)}


def test_an_element_of_several_models_may_be_another_one() -> None:
    source = f"""{IMPORTS}
def main(nets, i, j):
    models = [FSDP(net) for net in nets]
    with FSDP.state_dict_type(models[i], StateDictType.FULL_STATE_DICT):
        torch.save(models[j].state_dict(), "x")
"""
    said = ["models[j] may be a different model from the one whose state dict type is set"]
    assert messages(source, "FSDP301") == said


@pytest.mark.parametrize(
    "source",
    [
        """
def save(model, path):
    def state():
        return model.state_dict()
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        torch.save(state(), path)

def unrelated(model):
    def state():
        return 1
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        torch.save((state(), model.state_dict()), "x")

def main():
    save(FSDP(Net()), "x")
""",
        """
class Saver:
    def __init__(self):
        self.model = FSDP(Net())

    def state(self):
        return self.model.state_dict()

    def save(self, path):
        with FSDP.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT):
            torch.save(self.state(), path)
""",
    ],
)
def test_a_function_that_the_block_calls_keeps_block_and_state(source: str) -> None:
    assert len(messages(IMPORTS + source, "FSDP301")) == 1
    said = messages(IMPORTS + source, "FSDP309")
    assert len(said) == 1 and "this function is called inside the state_dict_type on line" in said[0]


def test_methods_about_parameters_are_taken_not_to_touch_the_state() -> None:
    source = f"{BLOCK}        names = model.trainable_params()\n        torch.save(model.state_dict(), path)\n"
    found = [(entry.level.value, entry.message) for entry in findings(source) if entry.rule == "FSDP301"]
    assert len(found) == 1
    assert found[0][0] == "review" and found[0][1].endswith(
        "assuming model.trainable_params neither reads nor loads the state"
    )


def test_a_package_with_functions_of_the_same_names_is_no_model() -> None:
    source = (
        f"import torch.distributed.checkpoint as dcp\n{BLOCK}        run(model)\n        dcp.load_state_dict(path)\n"
    )
    assert [message.split()[0] for message in messages(source, "FSDP301")] == ["run"]


@pytest.mark.parametrize("call", ["model.tokenizer.save(path)", "json.dump(model.args, path)"])
def test_what_holds_no_state_may_be_in_the_block(call: str) -> None:
    assert (
        messages(f"import json\n{BLOCK}        {call}\n        torch.save(model.state_dict(), path)\n", "FSDP301") == []
    )
