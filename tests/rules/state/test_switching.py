"""FSDP301, 302 and 309: settings that switch there and back, and context managers of the project's own that do."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_findings, check_rewrites, findings

IMPORTS = """\
from contextlib import contextmanager
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
"""
SWITCH = (
    IMPORTS
    + """
@contextmanager
def full_state(models):
    for model in models:
        FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    try:
        yield
    finally:
        for model in models:
            FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
"""
)
BLOCK = (
    IMPORTS
    + """
@contextmanager
def full_state(models):
    with FSDP.state_dict_type(models[0], StateDictType.FULL_STATE_DICT):
        yield
"""
)
USER = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from tools import full_state

def save(net):
    model = FSDP(net)
    with full_state([model]):
        return model.state_dict()
"""


def test_a_setting_goes_with_the_one_that_takes_it_back() -> None:
    check_rewrites(
        IMPORTS.partition("\n")[2]
        + """
def save(model):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    state = model.state_dict()
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    return state
""",
        """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

def save(model):
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return state
""",
    )


def test_a_setting_stays_with_the_one_that_takes_it_back() -> None:
    source = f"""{IMPORTS}
def save(model, other):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    state = model.state_dict()
    FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)
    return state

def another(model):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
"""
    found = [(entry.rule, entry.line, entry.level.value) for entry in findings(source)]
    assert ("FSDP302", 5, "manual") in found and ("FSDP310", 7, "manual") in found
    assert ("FSDP302", 11, "safe") in found
    assert any("it depends on the setting on line 7" in entry.message for entry in findings(source))


def test_a_context_manager_keeps_both_settings() -> None:
    found = [(entry.rule, entry.level.value) for entry in findings(SWITCH) if entry.rule == "FSDP302"]
    assert found == [("FSDP302", "manual"), ("FSDP302", "manual")]


@pytest.mark.parametrize("tools", [SWITCH, BLOCK])
@pytest.mark.parametrize("entered", ["full_state([model])", "torch.no_grad(), full_state([model])"])
def test_a_block_of_such_a_context_manager_is_left_for_the_reader(tools: str, entered: str) -> None:
    source = "import torch" + USER.replace("full_state([model])", entered)
    found = findings(source, None, tools=tools)
    assert [entry.message for entry in found if entry.rule == "FSDP301"] == [
        "full_state sets the state dict type for the calls in this block, and FSDP2 has no such setting"
    ]
    assert [entry.level.value for entry in found if entry.rule == "FSDP309"] == ["manual"]


def test_a_method_of_the_same_file() -> None:
    source = f"""{IMPORTS}
class Trainer:
    @contextmanager
    def full(self):
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
            yield

    def save(self):
        with self.full():
            return self.state()
"""
    assert [(entry.line, entry.level.value) for entry in findings(source) if entry.rule == "FSDP301"] == [
        (7, "manual"),
        (11, "manual"),
    ]


@pytest.mark.parametrize(
    ("tools", "level"),
    [
        ("from contextlib import contextmanager\n\n@contextmanager\ndef full_state(models):\n    yield\n", "review"),
        (
            IMPORTS
            + """
@contextmanager
def full_state(models):
    with FSDP.state_dict_type(models[0], StateDictType.FULL_STATE_DICT):
        state = models[0].state_dict()
    yield state
""",
            "safe",
        ),
    ],
)
def test_other_context_managers(tools: str, level: str) -> None:
    check_findings(USER, {("FSDP101", "safe"), ("FSDP110", "safe"), ("FSDP309", level)}, None, tools=tools)


@pytest.mark.parametrize(
    "made",
    [
        "functools.partial(FSDP.state_dict_type, state_dict_type=StateDictType.SHARDED_STATE_DICT)",
        "lambda model: FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)",
    ],
)
def test_a_context_with_a_name_of_its_own_governs_what_it_is_entered_for(made: str) -> None:
    """Without it the calls in the block would give full states, which nobody asked for."""
    tools = f"import functools\n{IMPORTS}\nkept = {made}\n"
    body = """
def save(net):
    model = FSDP(net)
    with kept(model):
        return model.state_dict()
"""
    apart = f"{IMPORTS}from tools import kept\n{body}"
    together = f"{tools}{body}"
    for said in (findings(apart, tools=tools), findings(together)):
        assert {(one.rule, one.level) for one in said} >= {("FSDP301", "manual"), ("FSDP309", "manual")}


@pytest.mark.parametrize(
    "entered",
    [
        "FSDP.set_state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT)",
        "self.context = FSDP.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT)\n"
        "        self.context.__enter__()",
    ],
)
def test_a_class_whose_objects_set_it_when_they_are_entered(entered: str) -> None:
    tools = f"""{IMPORTS}
class Sharded:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        {entered}
"""
    body = "\ndef take(net):\n    model = FSDP(net)\n    with Sharded(model):\n        return model.state_dict()\n"
    for said in (findings(f"{IMPORTS}from tools import Sharded\n{body}", tools=tools), findings(tools + body)):
        levels = {(one.rule, one.level.value) for one in said}
        assert levels >= {("FSDP301", "manual"), ("FSDP309", "manual")} and ("FSDP302", "safe") not in levels


def test_a_context_that_has_ended_when_another_yields_sets_nothing_for_what_enters_that() -> None:
    source = f"""{IMPORTS}
from contextlib import contextmanager

@contextmanager
def full(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        yield

@contextmanager
def running(model):
    with full(model):
        model.load_state_dict(saved)
    yield model

def take(net):
    model = FSDP(net)
    with running(model):
        return model.state_dict()
"""
    assert [
        one.rule for one in findings(source) if one.rule in ("FSDP301", "FSDP309") and one.level.value == "manual"
    ] == []


def test_the_context_of_a_model_that_keeps_fsdp1_stays() -> None:
    source = f"""{IMPORTS}
class Wrapper(FSDP):
    pass

class Saver:
    def __init__(self, net):
        self.model = Wrapper(net)

    def kind(self):
        return FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT)

    def save(self):
        with self.kind():
            return self.model.state_dict()
"""
    assert [one.rule for one in findings(source) if one.level.value == "manual"] == ["FSDP119"]


def test_a_context_that_a_name_stands_for_is_one_of_several() -> None:
    """Neither kind is guessed for the calls in the block."""
    source = f"""{IMPORTS}
def full(model):
    return FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)

def sharded(model):
    return FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)

def save(net, kind):
    model = FSDP(net)
    entered = full(model) if kind == "full" else sharded(model)
    with entered:
        return model.state_dict()
"""
    found = {(entry.rule, entry.line, entry.level.value) for entry in findings(source)}
    assert {("FSDP301", 13, "manual"), ("FSDP309", 14, "manual")} <= found
