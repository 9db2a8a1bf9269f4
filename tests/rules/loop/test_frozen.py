"""FSDP218: ``requires_grad`` that is changed while training goes on."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"


def lines(source: str, **others: str) -> list[int]:
    return sorted({entry.line for entry in findings(source, **others) if entry.rule == "FSDP218"})


@pytest.mark.parametrize(
    "body",
    [
        "    for p in model.parameters():\n        p.requires_grad = False\n",
        "    for name, p in model.named_parameters():\n        p.requires_grad_('head' in name)\n",
        "    model.requires_grad_(False)\n",
        "    model.module.freeze_encoder()\n",
    ],
)
def test_right_after_the_model_is_wrapped_and_before_nothing_is_lost(body: str) -> None:
    assert lines(f"{HEAD}def build(net):\n    model = FSDP(net)\n{body}    return model\n") == []
    assert lines(f"{HEAD}def build(model):\n{body}    model = FSDP(model)\n    return model\n") == []


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("    for p in model.parameters():\n        p.requires_grad = False\n", 3),
        ("    for name, p in model.named_parameters():\n        p.requires_grad_('head' in name)\n", 3),
        ("    model.requires_grad_(False)\n", 2),
        ("    model.module.unfreeze_all()\n", 2),
        ("    model.freeze(tower='image')\n", 2),
        ("    model.set_trainable(True)\n", 2),
        ("    model.encoder.freeze()\n", 2),
        ("    for p in model.encoder.parameters():\n        p.requires_grad = False\n", 3),
        ("    teacher.unfreeze_all()\n", None),
        ("    model.set_requires_gradient_sync(False)\n", None),
        ("    model.freezer()\n    loss = model(batch.requires_grad_())\n", None),
        ("    print([p.requires_grad for p in model.parameters()])\n", None),
    ],
)
def test_in_a_function_that_gets_the_model(body: str, line: int | None) -> None:
    source = f"def step(model, teacher, batch):\n{body}"
    main = f"{HEAD}from example import step\n\nmodel = FSDP(net)\nstep(model, teacher, batch)\n"
    assert lines(source, main=main) == ([] if line is None else [line])
    assert lines(source) == []


def test_in_a_loop_of_the_function_that_wraps() -> None:
    loop = "    for epoch in range(9):\n        if epoch == 3:\n            model.unfreeze()\n"
    assert lines(f"{HEAD}def main(net):\n    model = FSDP(net)\n{loop}") == []
    assert lines(f"{HEAD}def main(net):\n    model = FSDP(net)\n{loop}        run(model)\n") == [8]


def test_a_method_is_not_what_a_bare_name_in_its_class_calls() -> None:
    """Were ``run(model)`` the method itself, nothing would be known to run the model."""
    source = (
        f"{HEAD}class Trainer:\n    def run(self, net, epochs):\n        model = FSDP(net)\n"
        "        for epoch in range(epochs):\n            model.requires_grad_(epoch > 0)\n            run(model)\n"
    )
    assert lines(source) == lines(source.replace("def run", "def train")) == [8]


def test_a_partial_wraps_as_well() -> None:
    """The model gets another name from its class nowhere: what is called is a partial of FSDP."""
    head = f"import functools\n{HEAD}def main(net):\n    model = net\n"
    wrap = "    wrap = functools.partial(FSDP, use_orig_params=True)\n    model = wrap(model)\n"
    assert lines(f"{head}    model.head.requires_grad_(False)\n{wrap}    return model\n") == []
    loop = "    for epoch in range(3):\n        model.head.requires_grad_(False)\n        run(model)\n"
    assert lines(f"{head}{wrap}{loop}") == [10]


STEPS = """
def thaw(judge):
    judge.requires_grad_(True)

def steps(maker, judge, first, second, batches):
    for x in batches:
        thaw(judge)
        second.zero_grad()
        judge(x).mean().backward()
        second.step()
        judge.requires_grad_(False)
        (-judge(maker(x))).mean().backward()
        first.step()
"""
MAIN = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def main(maker, net, batches):
    judge = FSDP(net)
    first = torch.optim.SGD(maker.parameters(), lr=0.1)
    second = torch.optim.SGD(judge.parameters(), lr=0.1)
    steps(maker, judge, first, second, batches)
"""
KEEPS = "while a backward runs through"


def kept(source: str, **others: str) -> list[str]:
    found = [entry for entry in findings(source, **others) if entry.rule == "FSDP218" and KEEPS in entry.message]
    return [entry.level.value for entry in found]


def test_what_is_frozen_whole_is_kept_by_the_helper_where_the_same_file_wraps() -> None:
    result = rewrite(MAIN.replace("\ndef main", STEPS + "\ndef main"))
    assert isinstance(result, Changed)
    assert "fsdp_compat.shard(net" in result.source.decode()
    assert [one for one in result.findings if one.rule == "FSDP218" and KEEPS in one.message] == []


def test_it_is_reported_where_another_file_wraps() -> None:
    main = f"from example import steps\n{MAIN}"
    assert kept(STEPS, main=main) == ["manual"]


@pytest.mark.parametrize(
    ("thaw", "levels"),
    [
        ("judge.requires_grad_(True)", ["manual"]),
        ("for p in judge.parameters():\n        p.requires_grad = True", ["manual"]),
        ("judge.requires_grad_()", ["manual"]),
        ("judge.requires_grad_(False)", []),
        ("print((judge.size * 2).mean().requires_grad_(True))", []),
    ],
)
def test_what_thaws_may_stand_in_any_file(thaw: str, levels: list[str]) -> None:
    steps = f"from thawing import thaw\n{STEPS[STEPS.index('def steps') :]}"
    main = f"from example import steps\n{MAIN}"
    assert kept(steps, main=main, thawing=f"def thaw(judge):\n    {thaw}\n") == levels
