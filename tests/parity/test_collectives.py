"""Accumulated gradients cost the collectives that they cost under FSDP1, whatever writes ``no_sync``, and no more."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.counted import train_counted
from tests.parity.harness import files_of, rewritten_files
from tests.parity.programs import Program, programs
from tests.parity.trees import rewrite_tree, tree
from tests.pool import Pool
from tests.sampling import every

TRAIN = """
import contextlib
import functools
import sys
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, Net, data, finish, note, start
{imports}

def main():
    rank = start()
{wrap}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for step in range(3):
        optimizer.zero_grad()
{micro_batches}
        optimizer.step()
        note(loss)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
OPTIONS = "auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU"
MESH = 'device_mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))'
ZERO2 = f"model = FSDP(Net(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True, {OPTIONS})"
#: How micro-batches are accumulated: the imports of the function, and what stands in a step.
WAYS = {
    "a choice of contexts": """
        for micro in range(4):
            with model.no_sync() if micro < 3 else contextlib.nullcontext():
                loss = model(data()).square().mean()
                loss.backward()
    """,
    "a block of its own": """
        with model.no_sync():
            for micro in range(3):
                model(data()).square().mean().backward()
        loss = model(data()).square().mean()
        loss.backward()
    """,
    "an exit stack": """
        for micro in range(4):
            with contextlib.ExitStack() as stack:
                if micro < 3:
                    stack.enter_context(model.no_sync())
                loss = model(data()).square().mean()
                loss.backward()
    """,
    "a name": """
        for micro in range(4):
            context = contextlib.nullcontext if (micro + 1) % 4 == 0 else model.no_sync
            with context():
                loss = model(data()).square().mean()
                loss.backward()
    """,
    "handed to a function": """
        for micro in range(4):
            loss = accumulated(model, model.no_sync if micro < 3 else contextlib.nullcontext)
    """,
}
#: How the strategy comes to the wrap.
WRAPS = {
    "a variable": "strategy = ShardingStrategy.SHARD_GRAD_OP\n"
    f"model = FSDP(Net(), sharding_strategy=strategy, {OPTIONS})",
    "a dictionary": 'kwargs = dict(sharding_strategy=ShardingStrategy["SHARD_GRAD_OP"], use_orig_params=True)\n'
    f"model = FSDP(Net(), **kwargs, {OPTIONS})",
    "another file": "model = build(Net())",
    "an argument of another file's function": "model = shard(Net(), ShardingStrategy.SHARD_GRAD_OP)",
}
#: What stands between a forward and its backward, or runs the backward itself, and what it says beside that.
BETWEEN = {
    "a device of the first parameter": """
        loss = model(data()).square().mean()
        device = next(model.parameters()).device
        (loss * torch.ones((), device=device)).backward()
    """,
    "names and dtypes in a loop": """
        loss = model(data()).square().mean()
        low = [name for name, value in model.named_parameters() if value.dtype is torch.float16]
        for name, value in model.named_parameters():
            if value.requires_grad:
                low.append(f"{name} {tuple(value.shape)}")
        loss.backward()
    """,
    "a count": """
        loss = model(data()).square().mean()
        trained = [value for value in model.parameters() if value.requires_grad]
        loss = loss / len(trained)
        loss.backward()
    """,
    "what is given the loss and the parameters": """
        loss = model(data()).square().mean()
        scaler(loss, optimizer, parameters=model.parameters())
    """,
    "a method that is given both": """
        output = model(data())
        loss = output.square().mean()
        scaler.run(parameters=list(model.parameters()), of=loss)
    """,
    "gradients that the model clears": """
        loss = model(data()).square().mean()
        model.zero_grad()
        loss.backward()
    """,
}
OTHERS = f"""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, data

def build(net):
    return FSDP(net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, {OPTIONS})

def shard(net, strategy):
    return FSDP(net, sharding_strategy=strategy, {OPTIONS})

class Scaler:
    def __call__(self, loss, optimizer, parameters=None):
        self.run(loss, parameters)

    def run(self, of, parameters):
        of.backward()
        for value in parameters:
            assert value.grad is None or value.grad.dtype is torch.float32

scaler = Scaler()

def accumulated(model, context):
    with context():
        loss = model(data()).square().mean()
        loss.backward()
    return loss
"""


def files_with(wrap: str, step: str = WAYS["a choice of contexts"]) -> dict[str, str]:
    script = TRAIN.format(
        wrap=textwrap.indent(wrap, "    "),
        micro_batches=textwrap.indent(textwrap.dedent(step).strip("\n"), " " * 8),
        imports="from others import accumulated, build, scaler, shard",
    )
    return tree(train=script, others=OTHERS)


def check_same(pool: Pool, tmp_path: Path, files: dict[str, str], world_size: int = 2) -> None:
    """A rewrite of ``files`` leaves nothing to do, trains as before, and calls the same collectives."""
    done = rewrite_tree(files)
    assert not done.manual()
    before = train_counted(pool, files, tmp_path / "before", world_size)
    after = train_counted(pool, done.files, tmp_path / "after", world_size)
    assert list(differ("losses", before.saved, after.saved)) == []
    assert after.calls() == before.calls()


@pytest.mark.parametrize("orig_params", [True, False])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"])
def test_every_strategy_gathers_and_scatters_as_often(
    pool: Pool, tmp_path: Path, strategy: str, orig_params: bool
) -> None:
    hybrid = "HYBRID" in strategy
    options = f"use_orig_params={orig_params}, {OPTIONS}" + (f", {MESH}" if hybrid else "")
    wrap = f"model = FSDP(Net(), sharding_strategy=ShardingStrategy.{strategy}, {options})"
    check_same(pool, tmp_path, files_with(wrap), 4 if hybrid else 2)


@pytest.mark.parametrize("way", WAYS)
def test_every_form_keeps_the_parameters(pool: Pool, tmp_path: Path, way: str) -> None:
    check_same(pool, tmp_path, files_with(ZERO2, WAYS[way]))


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
def test_the_strategy_is_followed_to_the_wrap(pool: Pool, tmp_path: Path, wrap: str) -> None:
    check_same(pool, tmp_path, files_with(wrap))


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(ZERO2, id="zero2"),
        pytest.param(ZERO2.replace("SHARD_GRAD_OP", "FULL_SHARD"), id="full", marks=pytest.mark.whole),
    ],
)
@pytest.mark.parametrize("step", BETWEEN.values(), ids=BETWEEN.keys())
def test_nothing_is_gathered_twice_between_a_forward_and_its_backward(
    pool: Pool, tmp_path: Path, step: str, wrap: str
) -> None:
    check_same(pool, tmp_path, files_with(wrap, step))


@pytest.mark.parametrize("kind", ["NO_REENTRANT", "REENTRANT"])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_recomputation_in_a_sharded_model_gathers_nothing_again(
    pool: Pool, tmp_path: Path, strategy: str, kind: str
) -> None:
    wrap = f"""from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as checkpoints

model = FSDP(Net(), sharding_strategy=ShardingStrategy.{strategy}, use_orig_params=True, {OPTIONS})
checkpoints.apply_activation_checkpointing(
    model,
    checkpoint_wrapper_fn=functools.partial(
        checkpoints.checkpoint_wrapper, checkpoint_impl=checkpoints.CheckpointImpl.{kind}
    ),
    check_fn=lambda module: isinstance(module, Block),
)"""
    step = """
loss = model(data().requires_grad_()).square().mean()
loss.backward()
"""
    check_same(pool, tmp_path, files_with(wrap, step))


def sampled() -> list[Program]:
    """Programs of the matrix that accumulate: one of each strategy and way of accumulating that needs no helper."""
    found: dict[tuple[str, str], Program] = {}
    for one in programs():
        if one.spec["accumulate"] != "none" and one.name.startswith("n"):
            found.setdefault((one.spec["strategy"], one.spec["accumulate"]), one)
    return [*found.values()]


@pytest.mark.parametrize("program", every(3, sampled()), ids=lambda program: program.name)
def test_programs_of_the_matrix_cost_no_more(pool: Pool, tmp_path: Path, program: Program) -> None:
    files = files_of(program)
    before = train_counted(pool, files, tmp_path / "before", program.world_size)
    after = train_counted(pool, rewritten_files(files, Settings()), tmp_path / "after", program.world_size)
    for old, new in zip(before.calls(), after.calls(), strict=True):
        # Sending the first values is not part of a step, and FSDP1 sends several at once.
        assert {name: count for name, count in new.items() if count > old.get(name, 0)}.keys() <= {"broadcast"}
