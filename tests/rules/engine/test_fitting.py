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
        (
            "call(first_of_all, second, third=of(them))",
            "call(\n    first_of_all,\n    second,\n    third=of(them),\n)",
        ),
        (
            "of = {name: value for name, value in items if name}",
            "of = {\n    name: value\n    for name, value in items\n    if name\n}",
        ),
        ("call(first, second, third, fourth)  # noqa: E501", "call(first, second, third, fourth)  # noqa: E501"),
        (
            "for unit in of(model, long_policy)[0]:\n    pass",
            "for unit in of(\n    model, long_policy\n)[0]:\n    pass",
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


def test_a_project_that_does_not_say_gets_lines_of_at_most_120() -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from torch.distributed.fsdp import ShardingStrategy\n\n"
        "parts = [FSDP(part, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_mesh=configuration.mesh)"
        " for part in models.of(configuration) if part.is_trained_and_not_frozen_in_any_way]\n"
    )
    result = rewrite(source)
    assert isinstance(result, Changed)
    lines = result.source.decode().splitlines()
    assert lines[2:] == [
        "parts = [",
        "    fully_shard(part, mesh=configuration.mesh, reshard_after_forward=False)",
        "    for part in models.of(configuration)",
        "    if part.is_trained_and_not_frozen_in_any_way",
        "]",
    ]
    assert not isinstance(rewrite(result.source), Changed)


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_lines_that_end_in_several_ways_are_left_alone(newline: str) -> None:
    text = f"a = f(1){newline}b = call(first, second)\nc = call(first, second)\n"
    assert fitted(text, "", 30) == text


def test_what_keeps_every_byte_is_not_broken() -> None:
    line = "model, optimizer = shard(model, first=1), AdamW(model.parameters(), lr=0.1)\n"
    assert fitted(line, "", 40) != line
    assert fitted(line, "", 40, {"AdamW(model.parameters(), lr=0.1)"}) == line
