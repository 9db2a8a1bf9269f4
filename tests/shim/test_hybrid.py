"""Hybrid strategies, and units on other ranks than the module around them, against real FSDP1."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from fsdp_compat import FSDP, CustomPolicy, ModuleWrapPolicy, ShardingStrategy
from fsdp_compat.messages import _logged
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import Block, build
from tests.shim.training import Case, Outcome, assert_same, train_compat, train_fsdp1, weights_of

ROUNDING = 1e-12


def grid(names: tuple[str, str] = ("between", "within")) -> DeviceMesh:
    return init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=names)


def pair_of_groups() -> dict[str, Any]:
    """Shards over ranks 0 and 2, 1 and 3: the pair is (shard, replicate), and its order is not the ranks'."""
    mesh = grid()
    return {"process_group": (mesh["between"].get_group(), mesh["within"].get_group())}


def both(rank: int, world_size: int, case: Case, devices: int) -> tuple[Outcome, Outcome]:
    with mock.patch(f"torch.{DEVICE.type}.device_count", return_value=devices):
        return train_fsdp1(rank, case), train_compat(rank, case)


@pytest.mark.parametrize("strategy", ["HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"])
@pytest.mark.parametrize("policy", ["transformer", "size"])
def test_the_default_mesh_shards_within_a_node(pool: Pool, strategy: str, policy: str) -> None:
    case = Case(policy=policy, strategy=strategy, double=True, accumulate=2, silent=True)
    for theirs, ours in pool.run(both, 4, case, 2):
        assert_same(theirs, ours, ROUNDING)


@pytest.mark.parametrize("strategy", ["NO_SHARD", "FULL_SHARD", "HYBRID_SHARD"])
def test_one_rank_trains_as_fsdp1(pool: Pool, strategy: str) -> None:
    for theirs, ours in pool.run(both, 1, Case(strategy=strategy, accumulate=2, silent=True, max_norm=1e3), 1):
        assert_same(theirs, ours)


def across_nodes(rank: int, world_size: int) -> tuple[Outcome, Outcome]:
    case = Case(strategy="HYBRID_SHARD", arguments=pair_of_groups(), double=True)
    return train_fsdp1(rank, case), train_compat(rank, case)


def test_a_pair_of_groups_may_shard_over_any_ranks(pool: Pool) -> None:
    for theirs, ours in pool.run(across_nodes, 4):
        assert_same(theirs, ours, ROUNDING)


def blocks_with(arguments: dict[str, Any]) -> CustomPolicy:
    return CustomPolicy(lambda module: arguments if isinstance(module, Block) else False)


OTHER_RANKS: dict[str, Callable[[], tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "part of the ranks": lambda: ("FULL_SHARD", {}, {"process_group": grid()["within"].get_group()}),
    "a dimension of a mesh": lambda: ("SHARD_GRAD_OP", {}, {"device_mesh": grid()["between"]}),
    "replicated in sharded": lambda: ("FULL_SHARD", {}, {"sharding_strategy": ShardingStrategy.NO_SHARD}),
    "sharded in replicated": lambda: ("NO_SHARD", {}, {"sharding_strategy": ShardingStrategy.FULL_SHARD}),
    "hybrid in sharded": lambda: (
        "FULL_SHARD",
        {},
        {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, **pair_of_groups()},
    ),
    "sharded in hybrid": lambda: (
        "HYBRID_SHARD",
        {"device_mesh": grid()},
        {"sharding_strategy": ShardingStrategy.FULL_SHARD, "device_mesh": None, "process_group": dist.group.WORLD},
    ),
}


def unit_on_other_ranks(rank: int, world_size: int, which: str) -> tuple[Outcome, Outcome]:
    strategy, arguments, of_blocks = OTHER_RANKS[which]()
    with mock.patch.dict("tests.shim.training.POLICIES", {"blocks": lambda: blocks_with(of_blocks)}):
        case = Case(policy="blocks", strategy=strategy, arguments=arguments, double=True, accumulate=2)
        return train_fsdp1(rank, case), train_compat(rank, case)


@pytest.mark.parametrize("which", OTHER_RANKS)
def test_units_on_other_ranks_than_their_parent(pool: Pool, which: str) -> None:
    for theirs, ours in pool.run(unit_on_other_ranks, 4, which):
        assert_same(theirs, ours, ROUNDING)


def nested_by_hand(rank: int, world_size: int) -> None:
    """Worker: an inner call on two ranks, an outer one on four; each unit keeps its mesh."""
    model: Any = build()
    mesh = grid()
    model.blocks[0] = FSDP(model.blocks[0], device_id=DEVICE, device_mesh=mesh["within"])
    FSDP(model, device_id=DEVICE, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    assert model.blocks[0].up.weight.device_mesh.mesh.tolist() == [2 * (rank // 2), 2 * (rank // 2) + 1]
    assert model.head.weight.device_mesh.mesh.tolist() == [[0, 1], [2, 3]]
    assert weights_of(model)["head.weight"].equal(build().head.weight.cpu())


def test_nested_calls_keep_their_meshes(pool: Pool) -> None:
    pool.run(nested_by_hand, 4)


def default_sizes(rank: int, world_size: int) -> list[str]:
    """Worker: where the number of devices makes no mesh, what torchrun says about the node does; else an error."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    _logged.clear()
    logger, handler = logging.getLogger("fsdp_compat"), Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def shape(devices: int, local_world_size: str | None) -> tuple[int, ...]:
        environment = {"LOCAL_WORLD_SIZE": local_world_size} if local_world_size is not None else {}
        os.environ.pop("LOCAL_WORLD_SIZE", None)
        with (
            mock.patch(f"torch.{DEVICE.type}.device_count", return_value=devices),
            mock.patch.dict(os.environ, environment),
        ):
            module = FSDP(
                nn.Linear(4, 4),
                device_id=DEVICE,
                auto_wrap_policy=ModuleWrapPolicy({nn.ReLU}),
                sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            )
        assert isinstance(module.weight, DTensor)
        return tuple(module.weight.device_mesh.shape)

    try:
        assert shape(2, None) == (2, 2)
        assert shape(2, "2") == (2, 2)
        assert not [message for message in messages if "LOCAL_WORLD_SIZE" in message]
        assert shape(2, "4") == (2, 2)
        assert shape(8, "4") == (1, 4)
        assert shape(3, "2") == (2, 2)
        with pytest.raises(ValueError, match=r"the 8 devices of a node, which do not evenly divide the 4 ranks"):
            shape(8, None)
        with pytest.raises(ValueError, match=r"the 3 devices of a node"):
            shape(3, "3")
    finally:
        logger.removeHandler(handler)
    return [message for message in messages if "LOCAL_WORLD_SIZE" in message]


def test_default_mesh_sizes(pool: Pool) -> None:
    for messages in pool.run(default_sizes, 4):
        assert len(messages) == 3
        assert "2 devices of a node, as FSDP1 does, though LOCAL_WORLD_SIZE is 4" in messages[0]
        assert (
            "LOCAL_WORLD_SIZE=4 ranks of a node, because its 8 devices do not evenly divide the 4 ranks" in messages[1]
        )
        assert (
            "LOCAL_WORLD_SIZE=2 ranks of a node, because its 3 devices do not evenly divide the 4 ranks" in messages[2]
        )


def apart(rank: int, world_size: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Worker: shards of one rank each, where FSDP1 reduces nothing."""
    arguments = {"device_mesh": init_device_mesh(DEVICE.type, (2, 1), mesh_dim_names=("replicate", "shard"))}
    case = Case(strategy="HYBRID_SHARD", arguments=arguments, double=True)
    return train_fsdp1(rank, case).weights, train_compat(rank, case).weights


def test_replicas_of_one_rank_train_together(pool: Pool) -> None:
    first, second = pool.run(apart, 2)
    assert not torch.equal(first[0]["head.weight"], second[0]["head.weight"])
    assert torch.equal(first[1]["head.weight"], second[1]["head.weight"])
