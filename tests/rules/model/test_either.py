"""A model that one of two expressions gives: what is done with it is reported as of what may be a sharded model."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

JOB = "from dataclasses import dataclass\n\n@dataclass\nclass Job:\n    network: object\n"
MAIN = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom job import Job\nfrom steps import go\n\n"
    "def main(net, other):\n    FSDP(net.other)\n    go({first}, {second})\n"
)
USES = {
    "print({held}.module)": "FSDP206",
    "{held}.zero_grad()": "FSDP220",
    "for p in {held}.parameters():\n        print(p.norm())": "FSDP227",
    "net = {held}\n    print(net.module)": "FSDP206",
}
HELD = {
    "(one or two)": ("{wrap}", "other"),
    "(two or one)": ("{wrap}", "other"),
    "(one if one else two)": ("{wrap}", "other"),
    "(one or two).network": ("Job({wrap})", "other"),
    "(two or one).network": ("Job({wrap})", "other"),
}


def spoken(held: str, use: str, wrap: str) -> set[str]:
    first, second = (one.format(wrap=wrap) for one in HELD[held])
    files = {
        "main.py": MAIN.format(first=first, second=second),
        "job.py": JOB,
        "steps.py": f"def go(one, two):\n    {use.format(held=held)}\n",
    }
    results = rewrite_tree({path: text.encode() for path, text in files.items()})
    result = results.get("steps.py", Unchanged())
    assert isinstance(result, Changed | Unchanged)
    return {found.rule for found in result.findings}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("use", USES)
def test_what_is_done_with_either_is_reported(held: str, use: str) -> None:
    assert USES[use] in spoken(held, use, "FSDP(net)")


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("use", USES)
def test_nothing_where_neither_is_wrapped(held: str, use: str) -> None:
    assert USES[use] not in spoken(held, use, "net")
