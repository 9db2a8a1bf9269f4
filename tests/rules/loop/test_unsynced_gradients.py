"""Gradients that are read before anything has reduced them."""

from __future__ import annotations

import pytest

from tests.rules.helpers import rewrite_tree

HEAD = """
import contextlib
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

def grad_norm(model):
    return sum(p.grad.pow(2).sum().item() for p in model.parameters() if p.grad is not None) ** 0.5

class Norms:
    def __init__(self, model):
        self.model, self.seen = model, []
    def note(self):
        self.seen.append([float(p.grad.abs().max()) for p in self.model.parameters()])

def micro_step(model, batch, last):
    with contextlib.nullcontext() if last else model.no_sync():
        model(batch).sum().backward()

def quiet(model, last):
    return model.no_sync() if not last else contextlib.nullcontext()

def train(net, batches, every):
    model = FSDP(net, use_orig_params=True)
    norms, seen = Norms(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches):
        last = number % every == every - 1
{body}
"""
STEP = """
if last:
    optimizer.step()
    optimizer.zero_grad()
"""


def told(body: str) -> list[str]:
    """The levels of what is said of reads without synchronisation."""
    text = "".join(f"        {line}\n" for line in body.strip().splitlines())
    result = rewrite_tree({"train.py": HEAD.replace("{body}", text).encode()})["train.py"]
    return [one.level.value for one in getattr(result, "findings", ()) if "has not reduced" in one.message]


@pytest.mark.parametrize(
    "body",
    [
        "with contextlib.nullcontext() if last else model.no_sync():\n"
        "    model(batch).sum().backward()\nseen.append(grad_norm(model))",
        "with contextlib.nullcontext() if last else model.no_sync():\n    model(batch).sum().backward()\nnorms.note()",
        "with quiet(model, last):\n    model(batch).sum().backward()\n    seen.append(grad_norm(model))",
        "micro_step(model, batch, last)\nfor p in model.parameters():\n    seen.append(p.grad.norm().item())",
        "context = model.no_sync if not last else contextlib.nullcontext\n"
        "with context():\n    model(batch).sum().backward()\nnorms.note()",
        "if last:\n    model(batch).sum().backward()\nelse:\n    with model.no_sync():\n"
        "        model(batch).sum().backward()\nseen.append(grad_norm(model))",
        "if not last:\n    with model.no_sync():\n        model(batch).sum().backward()\nelse:\n"
        "    model(batch).sum().backward()\nseen.append(grad_norm(model))",
    ],
)
def test_reads_of_each_micro_batch_are_left_to_a_human(body: str) -> None:
    assert told(body + STEP) == ["manual"]


@pytest.mark.parametrize(
    "body",
    [
        "micro_step(model, batch, last)\nif last:\n    seen.append(grad_norm(model))",
        "with model.no_sync():\n    model(batch).sum().backward()\nmodel(batch).sum().backward()\nnorms.note()",
        "for part in batch[:-1]:\n    with model.no_sync():\n        model(part).sum().backward()\n"
        "model(batch[-1]).sum().backward()\nseen.append(grad_norm(model))",
        "seen.append(grad_norm(model))\nmicro_step(model, batch, last)",
        "micro_step(model, batch, last)\nfor p in model.parameters():\n    assert p.grad is None or last",
        "model(batch).sum().backward()\nnorms.note()",
    ],
)
def test_reads_of_what_is_reduced_say_nothing_of_it(body: str) -> None:
    assert told(body + STEP) == []
