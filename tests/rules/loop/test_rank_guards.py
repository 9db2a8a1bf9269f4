"""FSDP214: reads of parameters on some ranks only."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_noop, findings

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
READ = "for p in model.parameters():\n    print(p.norm())\n"


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(source) if found.rule == "FSDP214"]


def guarded(test: str, read: str) -> str:
    return WRAP + f"if {test}:\n" + "".join(f"    {line}\n" for line in read.splitlines())


def test_models_that_are_never_wrapped_are_left_alone() -> None:
    check_noop(f"if rank == 0:\n    pass\n{READ}")


def test_reads_on_all_ranks_are_left_alone() -> None:
    assert levels(WRAP + READ) == []
    assert levels(guarded("step % 10 == 0", READ)) == []


@pytest.mark.parametrize(
    "test", ["rank == 0", "dist.get_rank() == 0", "args.local_rank in (0, -1)", "is_main_process()"]
)
def test_reads_behind_a_guard(test: str) -> None:
    assert levels(guarded(test, READ)) == ["manual"]


def test_reads_behind_a_return() -> None:
    source = """
def report(rank):
    if rank != 0:
        return
    print([p.data.abs().mean() for p in model.parameters()])
"""
    assert levels(WRAP + source) == ["manual"]


def test_counting_is_local_but_another_number() -> None:
    assert levels(WRAP + "print(sum(p.numel() for p in model.parameters()))\n") == ["review"]


def test_full_parameters_may_be_read() -> None:
    source = "with FSDP.summon_full_params(model):\n" + "".join(f"    {line}\n" for line in READ.splitlines())
    assert levels(guarded("rank == 0", source)) == []


UNITS = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def report(net):
    model = FSDP(net)
    {body}
"""


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    ("body", "level"),
    [
        ("return [{'n': sum(p.numel() for p in unit.parameters())} for unit in FSDP.fsdp_modules(model)]", "manual"),
        (
            "units = FSDP.fsdp_modules(model)\n    return [p for p in units[0].parameters() if p.nelement() > 99]",
            "manual",
        ),
        ("sizes = {}\n    for name, p in model.named_parameters():\n        sizes[name] = p.numel()", "manual"),
        ("print(sum(p.numel() for unit in FSDP.fsdp_modules(model) for p in unit.parameters()))", "review"),
        ("return sum(p.numel() for p in model.parameters())", "review"),
        ("n = sum(p.numel() for p in model.parameters())\n    log({'n': n}, -1)", "manual"),
        ("log({'n': sum(p.numel() for p in model.parameters())}, -1)", "manual"),
        ("own = sum(p.numel() for p in model.parameters())\n    rows = [own, 1]\n    return rows", "manual"),
        ("n = sum(p.numel() for p in model.parameters())\n    n = 1\n    log({'n': n})", "review"),
        ("n = sum(p.numel() for p in model.parameters())\n    log('n', n)", "review"),
    ],
)
def test_counts_that_decide_or_are_kept_are_manual(body: str, level: str, to: str) -> None:
    said = findings(UNITS.format(body=body), Settings(to=to))
    assert [found.level.value for found in said if found.rule == "FSDP214"] == [level]


OPTIMIZER = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Own(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                {body}
                p.data.add_(p.grad, alpha=-group["lr"])

def main(net):
    model = FSDP(net)
    optimizer = Own(model.parameters(), dict(lr=0.1))
    model(net).sum().backward()
    optimizer.step()

main(None)
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("self.seen += p.numel()", ["review"]),
        ("self.seen = self.seen + p.numel()", ["manual"]),
        ("self.sizes.append(p.numel())", ["review"]),
        ("if not p.numel(): continue", []),
        ("self.rate = 1 / p.numel(); p.data.mul_(self.rate)", []),
    ],
)
def test_counts_that_an_optimizer_keeps(body: str, said: list[str]) -> None:
    assert levels(OPTIMIZER.format(body=body)) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        ("print(len(list(model.parameters())))", ["review"]),
        ("params = list(model.parameters())\n    log = {'tensors': len(params)}", ["manual"]),
        ("assert sum(1 for p in model.parameters() if p.requires_grad) == 3", ["manual"]),
        ("print(len(batches), sum(p.mean() for p in model.parameters()))", []),
    ],
)
@pytest.mark.parametrize("originals", [False, True])
def test_counts_of_flat_parameters(count: str, said: list[str], originals: bool) -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\ndef run(net, batches):\n"
        f"    model = FSDP(net, use_orig_params={originals})\n    {count}\n"
    )
    every = [one for one in findings(source) if "counts all parameters" in one.message]
    assert [one.level.value for one in every] == ([] if originals else said)
