"""Lines that a rewrite writes are no longer than the project allows."""

from __future__ import annotations

import pytest

from fsdp_rules.engine.fitting import fitted
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("norm = clip(model.parameters(), 1.0).full()", "norm = clip(\n    model.parameters(), 1.0\n).full()"),
        ("short = f(1)", "short = f(1)"),
        ("text = 'no bracket in (this) line, but long'", "text = 'no bracket in (this) line, but long'"),
        ("# a comment of (more) than thirty characters", "# a comment of (more) than thirty characters"),
        ("if check(first, second, third, 4):\n    pass", "if check(\n    first, second, third, 4\n):\n    pass"),
        (
            "if first and second(third) or other:\n    pass",
            "if (\n    first and second(third)\n    or other\n):\n    pass",
        ),
        (
            "mesh = of(group) if group is not None else None",
            "mesh = (\n    of(group)\n    if group is not None\n    else None\n)",
        ),
        (
            "if (first and second) and third(of, this):\n    pass",
            "if (\n    (first and second)\n    and third(of, this)\n):\n    pass",
        ),
        ("value = table[first_key, second_key]", "value = table[\n    first_key, second_key\n]"),
    ],
)
def test_a_long_line_is_broken_at_its_last_bracket(line: str, expected: str) -> None:
    assert fitted(line + "\n", "", 30) == expected + "\n"
    assert fitted(line + "\n", line, 30) == line + "\n", "the project's own lines are left alone"


def test_in_a_rewrite() -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def train(net, steps):\n    model = FSDP(net)\n    for step in steps:\n        step(model).backward()\n"
        "        total_norm = model.clip_grad_norm_(steps.max_norm).item()\n    return total_norm\n"
    )
    result = rewrite(source, Settings(line_length=79))
    assert isinstance(result, Changed)
    assert max(map(len, result.source.splitlines())) <= 79
    assert b"clip_grad_norm_(\n            model.parameters(), steps.max_norm\n        )" in result.source
    assert not isinstance(rewrite(result.source, Settings(line_length=79)), Changed)
