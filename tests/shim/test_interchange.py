"""State that FSDP1 saves and the shim loads, and the other way round: training goes on as if nothing had happened."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.tensor import DTensor

import fsdp_compat
from fsdp_compat import FSDP, FullOptimStateDictConfig, FullStateDictConfig, ShardingStrategy, StateDictType
from tests.device import DEVICE
from tests.parity.ordered import sums_in_rank_order
from tests.pool import Pool
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES, clean, quiet_fsdp1

FULL, SHARDED = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT
FULL_CONFIGS = (FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False))


def made(face: Any, seed: int, **keywords: Any) -> tuple[Any, torch.optim.Optimizer]:
    """A model with some parameters frozen, and Adam with two groups that part its names, not its shapes."""
    model = build(seed)
    model.embed.weight.requires_grad_(False)
    model.blocks[1].up.weight.requires_grad_(False)
    keywords = {"device_id": DEVICE, "use_orig_params": True, "auto_wrap_policy": POLICIES["transformer"](), **keywords}
    model = face(model, **keywords)
    named = [(clean(name), param) for name, param in model.named_parameters()]
    groups = [
        {"params": [param for name, param in named if "bias" not in name], "weight_decay": 0.1, "lr": 0.02},
        {"params": [param for name, param in named if "bias" in name], "betas": (0.8, 0.99)},
    ]
    return model, torch.optim.AdamW(groups, lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: Iterator[int] | range) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def saved(face: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    with face.state_dict_type(model, FULL, *FULL_CONFIGS):
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        return weights, face.optim_state_dict(model, optimizer)


def load(face: Any, model: nn.Module, optimizer: torch.optim.Optimizer, state: tuple[dict[str, Any], Any]) -> None:
    # FSDP1 on the CPU goes on to use the memory of what it is given.
    state = copy.deepcopy(state)
    with face.state_dict_type(model, FULL, *FULL_CONFIGS):
        answer = model.load_state_dict(state[0])
        assert (answer.missing_keys, answer.unexpected_keys) == ([], [])
        optimizer.load_state_dict(face.optim_state_dict_to_load(model, optimizer, state[1]))


def assert_equal(found: Any, expected: Any, where: str = "") -> None:
    """The same keys, lengths, types and bits; lists and tuples are one."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_equal(found[key], value, f"{where} {key}")
    elif isinstance(expected, torch.Tensor):
        assert type(found) is torch.Tensor, where
        torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=0, atol=0, msg=lambda text: f"{where}: {text}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other, where)
    else:
        assert found == expected, where


def interchanged(rank: int, world_size: int) -> None:
    """Worker: stop under one implementation, go on under the other; both end where neither was ever stopped."""
    # Else gloo, with more than two ranks, adds up in an order that goes by where in its buffer a gradient lies.
    with quiet_fsdp1(), sums_in_rank_order():
        sides = {}
        for face in (FSDP1, FSDP):
            model, optimizer = made(face, seed=0)
            before = train(model, optimizer, rank, range(2))
            state = saved(face, model, optimizer)
            after = train(model, optimizer, rank, range(2, 5))
            sides[face] = (before, state, after, saved(face, model, optimizer))
        assert_equal(sides[FSDP], sides[FSDP1])
        for source, target in ((FSDP1, FSDP), (FSDP, FSDP1), (FSDP, FSDP)):
            model, optimizer = made(target, seed=rank + 3)
            _, state, expected, end = sides[source]
            load(target, model, optimizer, state)
            assert_equal(saved(target, model, optimizer), state)
            assert_equal(train(model, optimizer, rank, range(2, 5)), expected)
            assert_equal(saved(target, model, optimizer), end)
    reference, optimizer = made(lambda model, **_: model, seed=0)
    for step in range(2):
        optimizer.zero_grad()
        for part in range(world_size):
            (loss_of(reference, part, step) / world_size).backward()
        optimizer.step()
    weights, state = sides[FSDP][1]
    for name, param in reference.named_parameters():
        torch.testing.assert_close(weights[name].cpu(), param.detach().cpu(), rtol=1e-4, atol=1e-6)
        for key, value in optimizer.state.get(param, {}).items():
            torch.testing.assert_close(state["state"][name][key].cpu(), value.cpu(), rtol=1e-4, atol=1e-6)
    assert state["state"].keys() == {name for name, param in reference.named_parameters() if param in optimizer.state}


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_training_goes_on_across_implementations(pool: Pool, world_size: int) -> None:
    pool.run(interchanged, world_size)


def old_shards(rank: int, world_size: int) -> None:
    """Worker: FSDP1's ShardedTensors, as a checkpoint of each rank holds them, for the model and the optimizer."""
    with quiet_fsdp1():
        theirs, their_optimizer = made(FSDP1, seed=0)
        train(theirs, their_optimizer, rank, range(2))
        expected = saved(FSDP1, theirs, their_optimizer)
        with FSDP1.state_dict_type(theirs, SHARDED):
            shards, states = theirs.state_dict(), FSDP1.sharded_optim_state_dict(theirs, their_optimizer)
    assert not isinstance(shards["head.weight"], DTensor) and hasattr(shards["head.weight"], "local_shards")
    model, optimizer = made(FSDP, seed=4)
    with FSDP.state_dict_type(model, SHARDED):
        model.load_state_dict(shards)
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, states))
    assert_equal(list(saved(FSDP, model, optimizer)), list(expected))


def test_sharded_tensors_of_fsdp1_are_loaded(pool: Pool) -> None:
    pool.run(old_shards, 2)
    pool.run(old_shards, 3)


def hybrid(world_size: int) -> dict[str, Any]:
    mesh = init_device_mesh(DEVICE.type, (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    return {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "device_mesh": mesh}


@contextlib.contextmanager
def quiet_checkpoints() -> Iterator[None]:
    """torch warns about its own storage there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save_shards(rank: int, world_size: int, folder: str, kinds: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    """Worker: checkpoints as FSDP1's users write them, by folder with all that they hold."""
    folders = {}
    for kind in kinds:
        model, optimizer = made(FSDP, seed=0, **hybrid(world_size) if kind == "hybrid" else {})
        train(model, optimizer, rank, range(2))
        place = f"{folder}/{kind}{world_size}"
        folders[place] = saved(FSDP, model, optimizer)
        with FSDP.state_dict_type(model, SHARDED), quiet_checkpoints():
            state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
            # What was saved is what was there, also when it is written later.
            train(model, optimizer, rank, range(2, 3))
            dcp.save(state, checkpoint_id=place)
    return folders


def load_shards(rank: int, world_size: int, folders: dict[str, tuple[Any, Any]], kinds: tuple[str, ...]) -> None:
    """Worker: each checkpoint, into each layout of this many ranks, in the ways that FSDP1's users load."""
    for kind in kinds:
        for folder, expected in folders.items():
            model, optimizer = made(FSDP, seed=4, **hybrid(world_size) if kind == "hybrid" else {})
            with FSDP.state_dict_type(model, SHARDED), quiet_checkpoints():
                state = {"model": model.state_dict()}
                dcp.load(state, checkpoint_id=folder)
                model.load_state_dict(state["model"])
                reader = dcp.FileSystemReader(folder)
                states = load_sharded_optimizer_state_dict(state["model"], "optim", reader)["optim"]
                optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, states))
            weights, states = saved(FSDP, model, optimizer)
            assert_equal(weights, expected[0], folder)
            assert_equal(states["state"], expected[1]["state"], folder)
            assert states["param_groups"][0]["lr"] == 0.02
            with FSDP.state_dict_type(model, SHARDED), quiet_checkpoints():
                again = {"optim": FSDP.optim_state_dict(model, optimizer)}
                for values in again["optim"]["state"].values():
                    for value in values.values():
                        (value.to_local() if isinstance(value, DTensor) else value).zero_()
                dcp.load(again, checkpoint_id=folder)
                optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, again["optim"]))
            assert_equal(saved(FSDP, model, optimizer)[1]["state"], expected[1]["state"], folder)
            assert fsdp_compat.get_state_dict_type(model).state_dict_type is FULL
    dist.barrier()


def test_sharded_checkpoints_move_between_world_sizes(pool: Pool, tmp_path: Path) -> None:
    folders = {
        **pool.run(save_shards, 2, str(tmp_path), ("flat",))[0],
        **pool.run(save_shards, 4, str(tmp_path), ("flat", "hybrid"))[0],
    }
    pool.run(load_shards, 2, folders, ("flat",))
    pool.run(load_shards, 3, folders, ("flat",))
    pool.run(load_shards, 4, folders, ("flat", "hybrid"))
