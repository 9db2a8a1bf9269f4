"""FSDP217: the assignment to ``data`` of a sharded parameter."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"


def found(source: str, **others: str) -> list[tuple[int, str, str]]:
    return [
        (entry.line, entry.level.value, "if" if entry.message.startswith("if ") else "sure")
        for entry in findings(source, **others)
        if entry.rule == "FSDP217"
    ]


@pytest.mark.parametrize(
    "body",
    [
        "    for p in model.parameters():\n        p.data = p.data.half()\n",
        "    for name, p in list(model.named_parameters()):\n        p.data = states[name]\n",
        "    if states:\n        model.head.weight.data = states['head']\n",
    ],
)
def test_a_wrapped_model(body: str) -> None:
    assert found(f"{HEAD}def load(model, states):\n    model = FSDP(model)\n{body}") == [(7, "manual", "sure")]


@pytest.mark.parametrize(
    "body",
    [
        "    for p in model.parameters():\n        p.data = p.data.half()\n    model = FSDP(model)\n",
        "    model = FSDP(model)\n    for p in model.parameters():\n        p.data.mul_(2)\n",
        "    model = FSDP(model)\n    for p in teacher.parameters():\n        p.data = p.data.half()\n",
        "    model = FSDP(model)\n    batch.data = 1\n",
        "    model = FSDP(model)\n    with FSDP.summon_full_params(model):\n"
        "        for p in model.parameters():\n            p.data = p.data.half()\n",
    ],
)
def test_what_works_as_before(body: str) -> None:
    assert found(f"{HEAD}def load(model, teacher, batch):\n{body}") == []


def test_a_model_from_elsewhere() -> None:
    body = "def cast(model):\n    for p in model.parameters():\n        p.data = p.data.half()\n"
    main = f"{HEAD}from example import cast\n\nmodel = FSDP(model)\ncast(model)\n"
    assert found(body) == []
    ((line, level, _),) = found(body, main=main)
    assert (line, level) == (3, "manual")


def test_a_function_that_shards_with_fsdp2_itself() -> None:
    body = "def cast(self):\n    for p in self.model.parameters():\n        p.data = p.data.half()\n"
    main = f"{HEAD}class A:\n    def __init__(self, model):\n        self.model = FSDP(model)\n"
    assert [certainty for _, _, certainty in found(body, main=main)] == ["if"]
    assert found(f"{body}    fully_shard(self.model)\n", main=main) == []
