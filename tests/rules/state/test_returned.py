"""FSDP301: a kind of state whose context a function or method of the file returns, and its callers enter."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_rewrites, findings

IMPORTS = """\
from contextlib import contextmanager
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""
CONTEXT = "FSDP.state_dict_type({}, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True))"
RETURNED = f"def full_state(model):\n    return {CONTEXT.format('model')}\n"
MANAGER = f"@contextmanager\ndef full_state(model):\n    with {CONTEXT.format('model')}:\n        yield\n"
LOCAL = (
    'def full_state(model):\n    """The whole state, on rank 0."""\n'
    "    from torch.distributed.fsdp import FullyShardedDataParallel\n\n"
    f"    return {CONTEXT.format('model').replace('FSDP', 'FullyShardedDataParallel')}\n"
)
USER = """
def save(net):
    sharded = FSDP(net)
    with full_state(sharded):
        return sharded.state_dict()
"""
METHODS = f"""
class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    def _whole(self):
        return {CONTEXT.format("self.model")}

    def save(self):
        with self._whole():
            return self.model.state_dict()
"""


def manual(source: str, **others: str) -> set[tuple[str, int]]:
    """The rules and lines of what is left to do by hand."""
    return {(one.rule, one.line) for one in findings(source, None, **others) if one.level.value == "manual"}


@pytest.mark.parametrize("function", [RETURNED, MANAGER, LOCAL], ids=["returned", "entered", "imported inside"])
def test_its_caller_passes_the_options_and_the_function_goes(function: str) -> None:
    imported = "from contextlib import contextmanager\n" if function is MANAGER else ""
    check_rewrites(
        f"{imported}{IMPORTS.partition(chr(10))[2]}\n{function}{USER}",
        """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

def save(net):
    sharded = fully_shard(net)
    return get_model_state_dict(
        sharded,
        options=StateDictOptions(full_state_dict=True, cpu_offload=True),
    )
""",
    )


def test_a_method_of_the_class() -> None:
    check_rewrites(
        IMPORTS.partition("\n")[2] + METHODS,
        """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)

    def save(self):
        return get_model_state_dict(
            self.model,
            options=StateDictOptions(full_state_dict=True, cpu_offload=True),
        )
""",
    )


LOADS = """
def load(net, state):
    with full_state(net):
        net.load_state_dict(state)
"""
KEPT = {
    "another kind for each caller": RETURNED.replace("(model)", "(model, kind)").replace(
        "StateDictType.FULL_STATE_DICT", "kind"
    ),
    "local states": RETURNED.replace("FULL_STATE_DICT, FullStateDictConfig(True, True)", "LOCAL_STATE_DICT"),
    "what it does first": RETURNED.replace("    return", "    prepare(model)\n    return"),
    "one more of its name": f"{RETURNED}\nif OLD:\n    def full_state(model):\n        return old(model)\n",
    "a model of its own": RETURNED.replace("(model)", "(other)"),
    "more than yields": MANAGER.replace("yield", "yield model.state_dict()"),
}


@pytest.mark.parametrize("function", KEPT.values(), ids=KEPT)
def test_what_is_not_one_certain_context_stays(function: str) -> None:
    user = USER.replace("(sharded):", "(sharded, KIND):") if "kind" in function else USER
    assert any(rule in ("FSDP301", "FSDP310") for rule, _ in manual(f"{IMPORTS}\n{function}{user}"))


def test_it_stays_while_something_else_calls_it() -> None:
    pushed = "\ndef push(stack, net):\n    stack.enter_context(full_state(net))\n    return net.state_dict()\n"
    by_name = '\ndef push(net):\n    with getattr(tools, "full_state")(net):\n        return net.state_dict()\n'
    elsewhere = "from torch.distributed.fsdp import FSDP\nfrom example import full_state\nprint(full_state)\n"
    assert manual(f"{IMPORTS}\n{RETURNED}{USER}{LOADS}") == set()
    assert ("FSDP301", 6) in manual(f"{IMPORTS}\n{RETURNED}{USER}{pushed}")
    assert ("FSDP301", 6) in manual(f"{IMPORTS}\n{RETURNED}{USER}{by_name}")
    assert ("FSDP301", 6) in manual(f"{IMPORTS}\n{RETURNED}{USER}", other=elsewhere)


def test_it_stays_with_a_block_that_stays() -> None:
    hidden = "\nimport tools\n\ndef load(net):\n    with full_state(net):\n        tools.restore(net)\n"
    assert manual(f"{IMPORTS}\n{RETURNED}{USER}{hidden}") == {("FSDP301", 6), ("FSDP301", 16)}


def test_it_stays_with_a_block_whose_finding_is_silenced() -> None:
    silenced = LOADS.replace("(net):\n        net", "(net):  # fsdp-migrate: ignore[FSDP301]\n        net")
    assert silenced != LOADS
    assert manual(f"{IMPORTS}\n{RETURNED}{USER}{silenced}") == {("FSDP301", 6)}


def test_a_method_that_a_subclass_replaces_is_not_followed() -> None:
    own = "    def _whole(self):\n        return tools.local(self.model)\n"
    other = f"from example import Trainer\n\nclass Own(Trainer):\n{own}"
    assert manual(IMPORTS + METHODS) == set()
    assert {rule for rule, _ in manual(IMPORTS + METHODS, other=other)} == {"FSDP301", "FSDP309"}


@pytest.mark.parametrize("name", ["whole", "_whole"])
def test_a_public_method_may_have_callers_that_say_nothing_of_fsdp(name: str) -> None:
    said = findings(IMPORTS + METHODS.replace("_whole", name))
    (removed,) = (one for one in said if one.rule == "FSDP301" and "callers" in one.message)
    assert removed.message.endswith("assumes no other file calls whole") is (name == "whole")
    assert removed.level.value == ("review" if name == "whole" else "safe")
