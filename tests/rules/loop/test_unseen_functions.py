"""Calls of functions that no file names, given a wrapped model."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_findings, check_noop, findings

HEAD = """
import logging

from hydra.utils import instantiate
from library import call, loaders, losses
from torch import nn, optim
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

TASKS = {}
LOSSES = {"first": losses.First, "second": nn.MSELoss}
log = logging.getLogger(__name__)
"""
MAIN = HEAD + "\ndef main(net, step, cfg, batch, name):\n    model = FSDP(net)\n    "


def unseen(body: str, **others: str) -> list[tuple[int, str]]:
    """The lines and levels of what is said of functions that cannot be seen."""
    return [(one.line, one.level.value) for one in findings(MAIN + body, None, **others) if one.rule == "FSDP223"]


@pytest.mark.parametrize(
    "call",
    [
        "step(model, batch)",
        "step(batch, net=model)",
        "step([model])",
        "TASKS[name](model)",
        "fn = TASKS.get(name)\n    fn(model)",
        "getattr(cfg, name)(model)",
        "instantiate(cfg, model=model)",
    ],
)
def test_a_function_that_no_file_names_is_reported(call: str) -> None:
    assert unseen(call + "\n") == [(15 + call.count("\n"), "review")]


@pytest.mark.parametrize(
    "call",
    [
        "print(model)",
        "len(list(model.parameters()))",
        "log.info(model)",
        "step(model.parameters())",
        "step(batch)",
        "optim.AdamW(model.parameters())",
        "call(model)",
        "losses.First()(model)",
        "LOSSES[name](model)",
        "loaders[name](model)",
        "cfg.tracker.watch(model)",
        "nn.DataParallel(model)",
        "model(batch)",
        "type(model)(batch)",
        "(lambda m: m.eval())(model)",
    ],
)
def test_functions_of_libraries_are_not(call: str) -> None:
    assert unseen(call + "\n") == []


def test_a_function_that_another_file_passes_is_not() -> None:
    others = "from example import main\nfrom steps import work\n\ndef run(net):\n    main(net, work, 1, 2, 'a')\n"
    work = "def work(net, batch):\n    return net(batch)\n"
    assert unseen("step(model, batch)\n", other=others, steps=work) == []


def test_it_is_not_said_above_the_wrap_or_of_another_model() -> None:
    check_findings(
        HEAD + "\ndef main(net, step):\n    step(net)\n    net = FSDP(net)\n",
        {("FSDP101", "safe"), ("FSDP110", "safe")},
    )
    check_noop("def main(net, step):\n    step(net)\n", other=MAIN)


def test_a_model_that_may_be_almost_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = "".join(f"    value_{step + 1} = value_{step}\n" for step in range(12))
    source = f"{HEAD}\ndef train(net):\n    value_0 = FSDP(net)\n{steps}    return value_12.module\n"
    followed = [found for found in findings(source) if found.rule == "FSDP223"]
    assert not followed
    monkeypatch.setattr("fsdp_rules.values.store.STEPS", 0)
    (cut,) = (found for found in findings(source) if found.rule == "FSDP223")
    assert cut.level.value == "review"
    assert "this tool cannot see" in cut.message


BOX = "\nclass Box:\n    def __init__(self, net):\n        {}\n    def {}(self, name):\n        return {}\n"


@pytest.mark.parametrize(
    ("held", "method", "given"),
    [
        ("self.net = FSDP(net)", "__getattr__", "getattr(self.net, name)"),
        ("self.parts = {'net': FSDP(net)}", "__getattr__", "self.__dict__['parts'][name]"),
        ("self.parts = dict(net=FSDP(net))", "__getattribute__", "object.__getattribute__(self, 'parts')[name]"),
        ("net = FSDP(net)\n        self.parts = [net]", "__getattr__", "self.parts[0]"),
    ],
)
def test_attributes_that_an_object_gives_are_not_followed(held: str, method: str, given: str) -> None:
    found = [one for one in findings(HEAD + BOX.format(held, method, given)) if one.rule == "FSDP223"]
    assert [one.level.value for one in found] == ["review"]
    assert method in found[0].message


@pytest.mark.parametrize(
    ("held", "method", "given"),
    [
        ("self.net = FSDP(net)", "get", "getattr(self.net, name)"),
        ("self.settings = {}", "__getattr__", "self.settings[name]"),
        ("self.names = [str(net)]\n        FSDP(net)", "__getattr__", "self.names[0]"),
    ],
)
def test_nothing_is_said_where_no_model_is_given_by_name(held: str, method: str, given: str) -> None:
    assert [one for one in findings(HEAD + BOX.format(held, method, given)) if one.rule == "FSDP223"] == []
