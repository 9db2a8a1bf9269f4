"""FSDP231: counts of modules, and places among them; FSDP1's tree has a wrapper for each unit."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

HEAD = """import logging
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def run(net, kind, mark):
    model = FSDP(net)
    """


def said(body: str, settings: Settings | None = None, head: str = HEAD) -> list[str]:
    return [found.level.value for found in findings(head + body + "\n", settings) if found.rule == "FSDP231"]


@pytest.mark.parametrize(
    ("body", "level"),
    [
        ("return len(list(model.modules()))", "review"),
        ("return len(tuple(model.named_modules()))", "review"),
        ("return sum(1 for _ in model.modules())", "review"),
        ("return len([one for one in model.modules()])", "review"),
        ("every = list(model.modules())\n    return len(every)", "review"),
        ("count = 0\n    for _ in model.modules():\n        count += 1\n    return count", "review"),
        ("for index, one in enumerate(model.modules()):\n        mark(index, one)", "review"),
        ("return [one for index, one in enumerate(model.modules()) if index % 2]", "review"),
        ("return list(model.modules())[3]", "manual"),
        ("every = [one for one in model.modules()]\n    return every[1:]", "manual"),
        ("print(len(list(model.modules())))", "review"),
        ('logging.info("%d modules", len(list(model.modules())))', "review"),
    ],
)
def test_a_count_is_said(body: str, level: str) -> None:
    assert said(body) == [level]
    assert said(body, Settings(to="shim")) == [level]
    assert said(body, head=HEAD.replace("FSDP(net)", "net")) == []


@pytest.mark.parametrize(
    "body",
    [
        "return list(model.modules())[0]",
        "return sum(1 for one in model.modules() if isinstance(one, kind))",
        "return len([one for one in model.modules() if isinstance(one, kind)])",
        "for one in model.modules():\n        one.eval()",
        "for one in model.modules():\n        if isinstance(one, kind):\n            mark.count += 1",
        'for index, one in enumerate(model.modules()):\n        logging.info("%d %s", index, one)',
        "return len(list(model.parameters()))",
        "return list(model.modules())",
        "return len(list(kind().modules()))",
        "return len(list(model.module.modules()))",
        "return dict(model.named_modules())",
    ],
)
def test_what_counts_no_wrapper_is_left(body: str) -> None:
    assert said(body) == []
