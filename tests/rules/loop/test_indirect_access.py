"""FSDP235: FSDP1's names as texts, and methods that are called on a class."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
IMPORTS = "import functools\nimport operator\nfrom torch import nn\n"
MAIN = f"{HEAD}from example import use\n\nmodel = FSDP(net)\nuse(model)\n"


def said(source: str, **others: str) -> list[tuple[int, str]]:
    return [(found.line, found.level) for found in findings(source, **others) if found.rule == "FSDP235"]


@pytest.mark.parametrize(
    "expression",
    [
        'getattr(model, "state_dict")()',
        'getattr(model, "summon_full_params")',
        'hasattr(model, "set_state_dict_type")',
        'operator.attrgetter("module.config")(model)',
        'operator.attrgetter("training", "module")(model)',
        'operator.methodcaller("state_dict")(model)',
        'functools.reduce(getattr, ["module", "config"], model)',
        'model.__getattr__("module").config',
        "nn.Module.state_dict(model)",
        "type(model).load_state_dict(model, state)",
        "model.__class__.no_sync(model)",
        "nn.Module.zero_grad(model)",
    ],
)
def test_a_name_as_a_text_is_left_to_a_person(expression: str) -> None:
    assert said(f"{IMPORTS}def use(model):\n    return {expression}\n", main=MAIN) == [(5, "manual")]
    assert said(f"{HEAD}{IMPORTS}def use(net):\n    model = FSDP(net)\n    return {expression}\n") == [(7, "manual")]
    assert said(f"{IMPORTS}def use(model):\n    return {expression}\n") == []


@pytest.mark.parametrize("kept", ["weakref.ref(model)", "weakref.proxy(model)"])
def test_what_a_weak_reference_gives_is_said_not_to_be_followed(kept: str) -> None:
    source = f"import weakref\ndef use(model):\n    return {kept}\n"
    assert said(source, main=MAIN) == [(3, "review")]
    assert said(source) == []


def test_a_function_with_a_name_of_its_own_is_seen() -> None:
    source = f'{IMPORTS}def use(model):\n    inside = operator.attrgetter("module")\n    return inside(model)\n'
    assert said(source, main=MAIN) == [(6, "manual")]


def test_the_model_of_an_owner_is_seen() -> None:
    source = f'{IMPORTS}def use(owner):\n    return operator.attrgetter("net.module.config")(owner)\n'
    main = f"{HEAD}from example import use\nowner.net = FSDP(net)\nuse(owner)\n"
    assert said(source, main=main) == [(5, "manual")]
    assert said(source) == []
    advice = [found.advice for found in findings(source, main=main) if found.rule == "FSDP235"]
    assert advice == ["write owner.net.module as an attribute, and run this tool again"]


@pytest.mark.parametrize(
    "expression",
    [
        'getattr(model, "config")',
        'getattr(model, "no_sync", None)',
        'hasattr(model, "state_dict")',
        'operator.attrgetter("config.width")(model)',
        "nn.Module.parameters(model)",
        "nn.Module.state_dict(other)",
        "type(model)(3)",
    ],
)
def test_other_names_are_left(expression: str) -> None:
    assert said(f"{IMPORTS}def use(model, other=None):\n    return {expression}\n", main=MAIN) == []


@pytest.mark.parametrize(
    "taken",
    ['vars(owner)["net"]', 'owner.__dict__["net"]', 'getattr(owner, "net")', 'getattr(vars(whole)["owner"], "net")'],
)
def test_a_model_that_is_taken_by_its_name_is_followed(taken: str) -> None:
    main = f"{HEAD}from example import use\nowner.net = FSDP(net)\nwhole.owner = owner\nuse(owner, whole)\n"
    found = findings(f"def use(owner, whole):\n    return {taken}.module.config\n", main=main)
    assert [(one.rule, one.line) for one in found if one.path == "example.py" or one.line == 2][:1] == [("FSDP206", 2)]


def test_a_model_that_is_put_by_its_name_is_followed() -> None:
    main = f'{HEAD}from example import use\nvars(owner)["net"] = FSDP(net)\nuse(owner)\n'
    found = findings("def use(owner):\n    return owner.net.module.config\n", main=main)
    assert ("FSDP206", 2) in [(one.rule, one.line) for one in found]
