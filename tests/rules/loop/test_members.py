"""Tests for FSDP1's class among all modules of a model, where a wrapper and what it holds were two of them."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

HEAD = """
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

def train(net, rates):
    model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
    found = []
"""


def after(body: str, to: str = "native") -> tuple[str, list[str]]:
    """What ``body`` becomes, and the levels of what is said of its classes."""
    text = "".join(f"    {line}\n" for line in body.splitlines())
    result = rewrite(HEAD + text, Settings(to=to))
    assert isinstance(result, Changed)
    said = [one.level.value for one in result.findings if one.rule == "FSDP205"]
    return result.source.decode().partition("found = []\n")[2], said


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("found.append(sum(1 for m in model.modules() if not isinstance(m, FSDP)))", "sum(1 for m in model.modules())"),
        (
            "found = [n for n, m in model.named_modules() if not isinstance(m, FSDP) if n]",
            "[n for n, m in model.named_modules() if n]",
        ),
        (
            "found = {n: m for n, m in list(model.named_modules()) if not isinstance(m, FSDP)}",
            "{n: m for n, m in list(model.named_modules())}",
        ),
        (
            "for m in model.modules():\n    if not isinstance(m, FSDP) and m.training:\n        found.append(m)",
            "        if m.training:",
        ),
        (
            "for _, m in enumerate(model.modules()):\n    if not isinstance(m, FSDP):\n        found.append(m)",
            "    for _, m in enumerate(model.modules()):\n        found.append(m)",
        ),
        (
            "for m in model.modules():\n    if isinstance(m, FSDP):\n        continue\n    found.append(m)",
            "    for m in model.modules():\n        found.append(m)",
        ),
    ],
)
def test_no_module_is_left_out(body: str, expected: str, to: str) -> None:
    text, said = after(body, to)
    assert expected in text and said == ["safe"]


@pytest.mark.parametrize(
    "body",
    [
        "for m in model.modules():\n    if isinstance(m, FSDP):\n        found.append(1)\n"
        "    else:\n        found.append(2)",
        "found = [1 if isinstance(m, FSDP) else 2 for m in model.modules()]",
        "for m in model.modules():\n    kept = not isinstance(m, FSDP)\n    found.append(kept)",
    ],
)
def test_two_branches_for_one_module_are_left_to_a_human(body: str) -> None:
    assert after(body)[1] == ["manual"]


@pytest.mark.parametrize(
    "body",
    [
        "units = [m for m in model.modules() if isinstance(m, FSDP) and m is not model]",
        "for m in net.children():\n    if not isinstance(m, FSDP):\n        found.append(m)",
        "for m in model.modules():\n    if isinstance(m, FSDP):\n        found.append(m)",
    ],
)
def test_other_questions_keep_their_test(body: str) -> None:
    text, said = after(body)
    assert "FSDPModule)" in text and "manual" not in said


@pytest.mark.parametrize(
    "body",
    [
        "for child in model.module.children():\n    inner = child.module if isinstance(child, FSDP) else child\n"
        "    found.append(rates[type(inner)])",
        "for child in model.module.children():\n    if isinstance(child, FSDP):\n        child = child.module\n"
        "    found.append(rates[type(child)])",
        "for m in model.modules():\n    if isinstance(m, FSDP):\n        continue\n"
        "    found.append(rates.get(type(m), 0))",
    ],
)
def test_the_class_of_what_no_wrapper_is_stays_the_modules_own(body: str) -> None:
    text, _ = after(body)
    assert ".__bases__[1] if isinstance(" in text
