"""What FSDP1's instances say about themselves, and FSDP2's degree of resharding, which has no equal there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from fsdp_compat import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from fsdp_compat.torch_.param_groups import managed_parameters
from tests.device import DEVICE, device_of
from tests.pool import Pool, WorkerError
from tests.shim.models import build
from tests.shim.training import POLICIES, Case, assert_same, quiet_fsdp1, train_compat, train_fsdp1

IMPLEMENTATIONS = ("fsdp1", "fsdp_compat")
NAMES = (
    "rank",
    "world_size",
    "sharding_strategy",
    "cpu_offload",
    "mixed_precision",
    "backward_prefetch",
    "forward_prefetch",
    "limit_all_gathers",
    "compute_device",
)


def names_of(implementation: str) -> Any:
    return FSDP1 if implementation == "fsdp1" else fsdp_compat.FSDP


def attributes(rank: int, world_size: int, implementation: str, layout: str) -> list[dict[str, Any]]:
    """Worker: what the root and a block say, and whether their group is the one that was given."""
    group = dist.new_group(list(range(world_size)))
    arguments: dict[str, dict[str, Any]] = {
        "group": {"process_group": group, "limit_all_gathers": False, "forward_prefetch": True},
        "replicated": {"sharding_strategy": ShardingStrategy.NO_SHARD, "backward_prefetch": None},
        "precision": {"mixed_precision": MixedPrecision(reduce_dtype=torch.bfloat16)},
        "mesh": {
            "sharding_strategy": ShardingStrategy.HYBRID_SHARD,
            "device_mesh": init_device_mesh(DEVICE.type, (1, world_size)),
        },
    }
    with quiet_fsdp1():
        model = names_of(implementation)(
            build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, **arguments[layout]
        )
    units = (model, model.blocks[0])
    return [
        {
            **{name: getattr(unit, name) for name in NAMES},
            "given": unit.process_group is group,
            "ranks": dist.get_process_group_ranks(unit.process_group),
            "replicas": dist.get_process_group_ranks(unit._inter_node_pg) if hasattr(unit, "_inter_node_pg") else None,
        }
        for unit in units
    ]


@pytest.mark.parametrize("layout", ["group", "replicated", "precision", "mesh"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_units_say_what_they_were_made_with(pool: Pool, implementation: str, layout: str) -> None:
    for rank, units in enumerate(pool.run(attributes, 2, implementation, layout)):
        for found in units:
            assert found == {
                "rank": rank,
                "world_size": 2,
                "sharding_strategy": {
                    "replicated": ShardingStrategy.NO_SHARD,
                    "mesh": ShardingStrategy.HYBRID_SHARD,
                }.get(layout, ShardingStrategy.FULL_SHARD),
                "cpu_offload": CPUOffload(),
                "mixed_precision": MixedPrecision(reduce_dtype=torch.bfloat16 if layout == "precision" else None),
                "backward_prefetch": None if layout == "replicated" else BackwardPrefetch.BACKWARD_PRE,
                "forward_prefetch": layout == "group",
                "limit_all_gathers": layout != "group",
                "compute_device": device_of(rank),
                "given": layout == "group",
                "ranks": [0, 1],
                "replicas": [rank] if layout == "mesh" else None,
            }


def a_single_rank(rank: int, world_size: int, implementation: str) -> ShardingStrategy:
    """Worker: the strategy of a model that one rank holds."""
    with quiet_fsdp1():
        strategy: ShardingStrategy = names_of(implementation)(nn.Linear(2, 2), device_id=DEVICE).sharding_strategy
    return strategy


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_single_rank_shards_nothing(pool: Pool, implementation: str) -> None:
    assert pool.run(a_single_rank, 1, implementation) == [ShardingStrategy.NO_SHARD]


class Named(nn.Module):
    """A model that uses some of those names itself."""

    def __init__(self) -> None:
        super().__init__()
        self.rank = "mine"
        self.register_buffer("world_size", torch.ones(1))
        self.process_group = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.process_group(x) * self.world_size  # type: ignore[no-any-return]


def own_names(rank: int, world_size: int) -> None:
    """Worker: the model's own attributes come first, buffers and children among them."""
    model = fsdp_compat.FSDP(Named(), device_id=DEVICE)
    assert model.rank == "mine"
    assert isinstance(model.world_size, torch.Tensor)
    assert isinstance(model.process_group, nn.Linear)
    model(torch.ones(1, 2).to(DEVICE)).sum().backward()
    model.rank = rank
    assert model.rank == rank
    assert model.sharding_strategy is ShardingStrategy.FULL_SHARD


def test_what_the_model_calls_so_itself_wins(pool: Pool) -> None:
    pool.run(own_names, 2)


def test_resharding_to_fewer_ranks_changes_no_number(pool: Pool) -> None:
    case = Case(double=True)
    to_two = Case(double=True, arguments={"reshard_after_forward": 2})
    for theirs, ours in zip(pool.run(fsdp1, 4, case), pool.run(compat, 4, to_two), strict=True):
        assert_same(theirs, ours, 1e-12)


def fsdp1(rank: int, world_size: int, case: Case) -> Any:
    """Worker: what FSDP1 makes of ``case``."""
    return train_fsdp1(rank, case)


def compat(rank: int, world_size: int, case: Case) -> Any:
    """Worker: what fsdp_compat makes of ``case``."""
    return train_compat(rank, case)


def sizes_after_forward(rank: int, world_size: int, degree: int | None) -> list[int]:
    """Worker: the shape of what this rank has after the forward of a block's first weight (11 rows)."""
    model = build()
    fsdp_compat.FSDP(model, auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, reshard_after_forward=degree)
    model(torch.zeros(1, 2, dtype=torch.long).to(DEVICE))
    weight = model.blocks[0].up.weight
    kept = next(managed for managed in managed_parameters(model.blocks[0]) if managed.sharded is weight)
    return list((kept.sharded if kept.post_forward is None else kept.post_forward).to_local().shape)


def test_units_stay_sharded_over_that_many_ranks(pool: Pool) -> None:
    assert pool.run(sizes_after_forward, 4, None) == [[3, 7], [3, 7], [3, 7], [2, 7]]
    assert pool.run(sizes_after_forward, 4, 2) == [[6, 7], [5, 7], [6, 7], [5, 7]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reshard_after_forward": True}, "is already set by sharding_strategy"),
        ({"reshard_after_forward": 1}, "a number of ranks of at least 2, not 1"),
        (
            {"reshard_after_forward": 2, "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
            "contradicts ShardingStrategy.SHARD_GRAD_OP",
        ),
        (
            {"reshard_after_forward": 2, "sharding_strategy": ShardingStrategy.NO_SHARD},
            "contradicts ShardingStrategy.NO_SHARD",
        ),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fsdp_compat.plan(build(), device_id=DEVICE, **arguments)


def test_a_degree_divides_the_ranks(pool: Pool) -> None:
    with pytest.raises(WorkerError, match=r"reshard_after_forward=3 does not divide the 2 ranks that shard blocks\.0"):
        pool.run(sizes_after_forward, 2, 3)


def test_a_plan_shows_the_degree() -> None:
    made = fsdp_compat.plan(
        build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, reshard_after_forward=8
    )
    assert {unit.kwargs["reshard_after_forward"] for unit in made.units} == {8}
    assert " 8 " in str(made).splitlines()[1]
