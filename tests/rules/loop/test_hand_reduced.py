"""FSDP216: norms of gradients that a program sums over ranks itself."""

from __future__ import annotations

import pytest

from fsdp_rules.engine.prefilter import has_marker
from tests.rules.helpers import findings

HEAD = "import torch\nimport torch.distributed as dist\n"
WRAPS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
NORM = "total = sum(p.grad.norm() ** 2 for p in model.parameters())"


def lines(source: str, **others: str) -> list[tuple[int, str]]:
    found = [entry for entry in findings(source, **others) if entry.rule == "FSDP216"]
    assert all(entry.level.value == "manual" for entry in found)
    return [(entry.line, "if" if entry.message.startswith("if ") else "sure") for entry in found]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"    model = FSDP(model)\n    {NORM}\n    dist.all_reduce(total)\n", [(7, "sure")]),
        (f"    model = FSDP(model)\n    {NORM}\n    dist.reduce(total, 0)\n", [(7, "sure")]),
        ("    grads = [p.grad for p in ps]\n    t = torch._foreach_norm(grads)\n    dist.all_reduce(t)\n", [(6, "if")]),
        (
            "    t = torch.linalg.vector_norm(p.grad.detach())\n    dist.all_reduce(t)\n    p.grad.norm()\n",
            [(6, "if"), (8, "if")],
        ),
        (f"    {NORM}\n    dist.all_reduce(total)\n    model = FSDP(model)\n", []),
        (f"    model = FSDP(model)\n    {NORM}\n", []),
        (f"    model = FSDP(model)\n    {NORM}\n    total = functools.reduce(add, total)\n", []),
        (f"    model = FSDP(model)\n    {NORM.replace('grad.', 'grad.to_local().')}\n    dist.all_reduce(total)\n", []),
        ("    dist.all_reduce(loss)\n    p.grad = None\n    p.norm() if p.grad is not None else 0\n", []),
        ("    p.grad.mul_(limit / model.norm)\n    dist.all_reduce(loss)\n", []),
    ],
)
def test_where_it_is_told_of(body: str, expected: list[tuple[int, str]]) -> None:
    others = {"main": WRAPS + "model = FSDP(model)\n"}
    assert lines(f"{HEAD}{WRAPS}def step(model, ps, p, loss, limit):\n{body}", **others) == expected


def test_a_caller_or_another_method_may_reduce() -> None:
    norm = "def norm(params):\n    return torch.stack([p.grad.norm() for p in params]).norm()\n\n\n"
    source = f"{HEAD}\n\n{norm}def clip(model):\n    total = norm(model.parameters())\n    dist.all_reduce(total)\n"
    main = WRAPS + "from example import clip\n\nmodel = FSDP(model)\nclip(model)\n"
    assert lines(source, main=main) == [(6, "sure")]
    assert lines(source.replace("norm(model.p", "other(model.p"), main=main) == []
    methods = (
        "class Lion:\n    metrics = {'grad': lambda p: torch.linalg.vector_norm(p.grad)}\n\n"
        "    def reduce(self, metric):\n        dist.all_reduce(metric)\n"
    )
    assert lines(HEAD + methods, main=main) == [(4, "if")]


def test_nothing_is_said_where_nothing_is_sharded() -> None:
    assert lines(f"{HEAD}\n\ndef step(model):\n    {NORM}\n    dist.all_reduce(total)\n") == []


def test_a_file_of_its_own_for_such_norms_is_looked_at() -> None:
    assert has_marker(f"{HEAD}def norm(model):\n    {NORM}\n    dist.all_reduce(total)\n".encode())
    assert not has_marker(f"{HEAD}def norm(parts):\n    return sum(p.grad.norm() for p in parts)\n".encode())
