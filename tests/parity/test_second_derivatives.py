"""Gradients that are differentiated again: trained as FSDP1 trains where it can, and as one process does anywhere."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.counted import train_counted
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, Net, data, finish, note, start
from penalties import Critic, averaged, penalty

def main():
    rank = start()
    model = {wrap}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for step in range(4):
        optimizer.zero_grad()
{step}
        averaged(model)
        optimizer.step()
        note(loss)
    note(model(data()).square().sum())
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
WRAP = (
    "FSDP(Net(), sharding_strategy=ShardingStrategy.{strategy}, auto_wrap_policy=ModuleWrapPolicy({{Block}}), "
    "device_id=CPU, use_orig_params={orig})"
)
PENALTIES = """
import torch
import torch.distributed as dist

def penalty(critic, real):
    real = real.clone().requires_grad_()
    score = critic(real)
    slope = torch.autograd.grad(outputs=score.sum(), inputs=real, create_graph=True)[0]
    return (slope.norm(dim=1) - 1).square().mean()

class Critic:
    def __init__(self, model):
        self.model = model

    def slopes(self, real):
        real.requires_grad_(True)
        (slope,) = torch.autograd.grad(self.model(real).sum(), real, create_graph=True)
        return slope.square().sum(1).mean()

    def learn(self, real):
        slope = self.slopes(real)
        loss = self.model(real + 1).mean() + slope
        loss.backward()
        return loss

def averaged(model):
    pass
"""
AVERAGING = """
def averaged(model):
    for value in model.parameters():
        if value.grad is not None:
            dist.all_reduce(value.grad)
            value.grad /= dist.get_world_size()
"""
#: Other forwards run between the two derivatives: FSDP1 trains these right.
TRAINED = {
    "a function of another file": """
        loss = penalty(model, data()) + model(data()).mean()
        loss.backward()
    """,
    "a method, from another method": "loss = Critic(model).learn(data())",
    "written out": """
        real = data().requires_grad_()
        (slope,) = torch.autograd.grad(model(real).sum(), real, create_graph=True)
        fake = model(data())
        loss = slope.square().sum() - fake.mean()
        if step % 2:
            loss.backward()
        else:
            (loss * 0.5).backward()
    """,
}
#: Nothing runs between the two: FSDP1 raises or reduces no gradients.
BEYOND_FSDP1 = {
    "forces of energies": """
        places = data().requires_grad_()
        energy = model(places).sum(1)
        force = -torch.autograd.grad(energy.sum(), places, create_graph=True, retain_graph=True)[0]
        loss = energy.square().mean() + (force - 1).square().mean()
        loss.backward()
    """,
    "every other step, behind a backward of its own": """
        loss = model(data()).square().mean()
        loss.backward()
        if step % 2 == 0:
            term = penalty(model, data())
            (10 * term).backward()
    """,
    "a product with a Hessian": """
        at, along = data(), data()
        value, product = torch.autograd.functional.vhp(lambda x: model(x).square().sum(), at, along)
        note(product.sum())
        loss = model(at).mean()
        loss.backward()
    """,
}


def files(step: str, strategy: str, orig: bool = True) -> dict[str, str]:
    body = textwrap.indent(textwrap.dedent(step).strip("\n"), " " * 8)
    wrap = WRAP.format(strategy=strategy, orig=orig)
    return tree(train=TRAIN.format(wrap=wrap, step=body), penalties=PENALTIES)


def rewritten(program: dict[str, str], *, unreduced: bool = False) -> dict[str, str]:
    done = rewrite_tree(program)
    assert all(unreduced and "did not reduce these gradients" in found for found in done.manual())
    assert [found.level.value for found in done.findings if found.rule == "FSDP237"]
    return dict(done.files)


@pytest.mark.parametrize("strategy", ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"])
@pytest.mark.parametrize("step", TRAINED.values(), ids=TRAINED.keys())
def test_trains_as_fsdp1_where_a_forward_runs_between(pool: Pool, tmp_path: Path, step: str, strategy: str) -> None:
    # Without use_orig_params NO_SHARD can, too.
    program = files(step, strategy, orig=strategy != "NO_SHARD")
    before = train_counted(pool, program, tmp_path / "before")
    after = train_counted(pool, rewritten(program), tmp_path / "after")
    assert list(differ("losses", before.saved, after.saved)) == []
    gathers = [[rank.get("all_gather", 0) for rank in counted.ranks] for counted in (before, after)]
    assert gathers[1] <= gathers[0]


@pytest.mark.parametrize("strategy", ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"])
@pytest.mark.parametrize("step", BEYOND_FSDP1.values(), ids=BEYOND_FSDP1.keys())
def test_trains_as_without_sharding_elsewhere(pool: Pool, tmp_path: Path, step: str, strategy: str) -> None:
    program = files(step, strategy)
    alone = {**program, "train.py": program["train.py"].replace(WRAP.format(strategy=strategy, orig=True), "Net()")}
    alone["penalties.py"] += AVERAGING
    expected = train_tree(pool, alone, tmp_path / "alone")
    after = train_tree(pool, rewritten(program, unreduced=strategy == "NO_SHARD"), tmp_path / "after")
    # Two backwards of one step add up their sums over the ranks in another order.
    assert list(differ("losses", expected, after, 1e-5 if "term" in step else 0.0)) == []
