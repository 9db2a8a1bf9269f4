"""What FSDP around tensor parallelism saves and loads, at the same and at other mesh shapes and numbers of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from fsdp_compat import FSDP, ModuleWrapPolicy, ShardingStrategy, StateDictType
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.gates import needs_torch
from tests.shim.parallel import HIDDEN, STYLES, Mlp, Mlps, full, loss_of, optimizer_of, train, train_unsharded
from tests.shim.training import weights_here

# As (replicate, shard, tp) or (dp, tp); None is a model without tensor parallelism on all ranks.
Shape = tuple[int, ...] | None


def build(shape: Shape, style: str, seed: int, hidden: int = HIDDEN) -> Any:
    model = Mlps(hidden, seed)
    arguments: dict[str, Any] = {"auto_wrap_policy": ModuleWrapPolicy({Mlp}), "device_id": DEVICE}
    if shape is None:
        return FSDP(model, **arguments)
    names = ("dp", "tp") if len(shape) == 2 else ("replicate", "shard", "tp")
    mesh = init_device_mesh(DEVICE.type, shape, mesh_dim_names=names)
    data_parallel = mesh["dp"] if len(shape) == 2 else mesh["replicate", "shard"]
    strategy = ShardingStrategy.FULL_SHARD if len(shape) == 2 else ShardingStrategy.HYBRID_SHARD
    return FSDP(STYLES[style](model, mesh["tp"]), device_mesh=data_parallel, sharding_strategy=strategy, **arguments)


def states(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}


def save(rank: int, world_size: int, directory: str, shape: Shape, style: str) -> None:
    """Worker: two steps, then a sharded checkpoint."""
    model = build(shape, style, seed=0)
    optimizer = optimizer_of(model)
    train(model, data_rank(rank, shape), optimizer, range(2))
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        saved = states(model, optimizer)
    assert all(isinstance(value, DTensor) for value in saved["model"].values())
    dcp.save(saved, checkpoint_id=directory)


def data_rank(rank: int, shape: Shape) -> int:
    # Two data-parallel positions in all layouts, so that all train on the same batches.
    return (rank if shape is None else rank // shape[-1]) % 2


def load(rank: int, world_size: int, directory: str, shape: Shape, style: str) -> list[float]:
    """Worker: another model and optimizer, the checkpoint into both, one more step; its loss and what comes of it."""
    model = build(shape, style, seed=1)
    optimizer = optimizer_of(model)
    train(model, data_rank(rank, shape), optimizer, range(1))
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        target = states(model, optimizer)
        dcp.load(target, checkpoint_id=directory)
        model.load_state_dict(target["model"])
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, target["optimizer"]))
    losses, _ = train(model, data_rank(rank, shape), optimizer, range(2, 3))
    reference, reference_losses, _ = train_unsharded(2, steps=3)
    torch.testing.assert_close(losses, [reference_losses[data_rank(rank, shape)][2]])
    weights = full(dict(model.named_parameters()))
    for name, weight in weights_here(reference).items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5)
    return losses


INTO_STRIDES = needs_torch("2.8", "loading a checkpoint into a dimension sharded by both FSDP and tensor parallelism")


@pytest.mark.parametrize(
    ("saved", "loaded", "style"),
    [
        ((2, 2), (2, 2), "tensor"),
        ((2, 2), (2, 2), "sequence"),
        ((2, 2), (4, 1), "tensor"),
        pytest.param((4, 1), (2, 2), "sequence", marks=INTO_STRIDES),
        ((2, 2), (2, 1), "sequence"),
        pytest.param((2, 1), (2, 2), "tensor", marks=INTO_STRIDES),
        ((2, 2), None, "tensor"),
        pytest.param(None, (2, 2), "sequence", marks=INTO_STRIDES),
        ((2, 1, 2), (2, 1, 2), "tensor"),
        ((2, 1, 2), (2, 2), "sequence"),
        ((1, 2, 2), (2, 1), "tensor"),
    ],
)
def test_sharded_checkpoints_move_between_layouts(
    pool: Pool, tmp_path: Path, saved: Shape, loaded: Shape, style: str
) -> None:
    sizes = [torch.Size(shape).numel() if shape is not None else 2 for shape in (saved, loaded)]
    pool.run(save, sizes[0], str(tmp_path), saved, style)
    pool.run(load, sizes[1], str(tmp_path), loaded, style)


def whole_states(rank: int, world_size: int, shape: tuple[int, ...], style: str) -> None:
    """Worker: full state dicts are those of one process, and go back in, also a second time after a step."""
    model = build(shape, style, seed=0)
    optimizer = optimizer_of(model)
    train(model, data_rank(rank, shape), optimizer, range(2))
    reference, _, _ = train_unsharded(2, steps=2)
    state = states(model, optimizer)
    assert list(state["model"]) == list(reference.state_dict())
    for name, value in reference.state_dict().items():
        assert type(state["model"][name]) is torch.Tensor
        torch.testing.assert_close(state["model"][name].cpu(), value.cpu(), rtol=1e-4, atol=1e-5)
        assert state["optimizer"]["state"][name]["exp_avg"].shape == value.shape
    other = build(shape, style, seed=1)
    other_optimizer = optimizer_of(other)
    train(other, data_rank(rank, shape), other_optimizer, range(1))
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(FSDP.optim_state_dict_to_load(other, other_optimizer, state["optimizer"]))
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert isinstance(mine, DTensor)
        assert isinstance(theirs, DTensor)
        assert torch.equal(mine.to_local(), theirs.to_local())
    for one, part in ((optimizer, model), (other_optimizer, other)):
        train(part, data_rank(rank, shape), one, range(2, 3))
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.to_local(), theirs.to_local())


@pytest.mark.parametrize(
    ("shape", "style"), [((2, 2), "tensor"), ((2, 2), "sequence"), ((2, 1, 2), "sequence"), ((1, 2, 2), "tensor")]
)
def test_full_states_are_whole_and_load(pool: Pool, shape: tuple[int, ...], style: str) -> None:
    pool.run(whole_states, 4, shape, style)


def distributed(rank: int, world_size: int, shape: tuple[int, ...], style: str) -> None:
    """Worker: a full tensor distributed by torch to a parameter's mesh and placements is what that parameter loads."""
    model, source = build(shape, style, seed=0, hidden=8), Mlps(8, seed=3).to(DEVICE)
    mine = dict(model.named_parameters())
    state = {
        name: distribute_tensor(value, mine[name].device_mesh, mine[name].placements)
        for name, value in source.state_dict().items()
    }
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        assert not model.load_state_dict(state).missing_keys
    expected = weights_here(source)
    for name, value in full(dict(model.named_parameters())).items():
        assert torch.equal(value, expected[name]), name
    loss = loss_of(model, 0, 0)
    torch.testing.assert_close(loss, loss_of(source, 0, 0))


@pytest.mark.parametrize(
    ("shape", "style"), [((2, 2), "tensor"), ((2, 2), "sequence"), ((2, 1, 2), "tensor"), ((1, 2, 2), "sequence")]
)
def test_distributed_tensors_load(pool: Pool, shape: tuple[int, ...], style: str) -> None:
    pool.run(distributed, 4, shape, style)
