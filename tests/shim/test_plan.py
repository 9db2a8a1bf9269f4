"""What a plan says before there is a process group, and whether the shards then weigh what it said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import fsdp_compat
from fsdp_compat import MixedPrecision, ShardingStrategy, UnitBytes, memory_report, plan
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES

HALF = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_table_says_who_manages_what_and_what_it_weighs() -> None:
    made = plan(
        build(),
        auto_wrap_policy=POLICIES["transformer"](),
        mixed_precision=HALF,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        world_size=4,
    )
    arguments = "SHARD_GRAD_OP  False                  bfloat16/float32"
    assert str(made) == (
        "unit      class  elements  parameters  per rank  gathered  strategy       reshard_after_forward  mp_policy    "
        "                   offload_policy\n"
        f"blocks.0  Block       187       748 B     212 B     424 B  {arguments}                -\n"
        f"blocks.1  Block       187       748 B     212 B     424 B  {arguments}                -\n"
        f"blocks.2  Block       187       748 B     212 B     424 B  {arguments}                -\n"
        f"(root)    Model       196       784 B     240 B     480 B  {arguments}, casts inputs  -\n"
        "total                 757     3.0 KiB     876 B\n"
        "per rank: split into 4, from world_size=4"
    )


def test_bytes_stay_open_without_a_number_of_ranks() -> None:
    made = plan(build(), auto_wrap_policy=POLICIES["transformer"]())
    assert [unit.size for unit in made.units[-1:]] == [UnitBytes(784, None, None, None)]
    assert str(made).splitlines()[-1] == "per rank: not known without the number of ranks; pass world_size=N to plan()"


def test_number_of_ranks_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    made = plan(nn.Linear(16, 16, bias=False))
    assert made.units[0].size.per_rank == 4 * 2 * 16
    assert str(made).splitlines()[-1] == "per rank: split into 8, from WORLD_SIZE=8 in the environment"
    assert plan(nn.Linear(16, 16, bias=False), world_size=2).units[0].size.per_rank == 4 * 8 * 16


def test_strategies_that_do_not_shard_over_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plan(nn.Linear(16, 16, bias=False), sharding_strategy=ShardingStrategy.NO_SHARD, world_size=4)
    assert whole.units[0].size.per_rank == 4 * 16 * 16
    assert str(whole).splitlines()[-1] == "per rank: split into 1, from NO_SHARD"
    monkeypatch.setattr(torch.get_device_module(DEVICE), "device_count", lambda: 2)
    policy = POLICIES["transformer"]()
    hybrid = plan(
        build(),
        auto_wrap_policy=policy,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=DEVICE,
        world_size=8,
    )
    assert str(hybrid).splitlines()[-1] == "per rank: split into 2, from HYBRID_SHARD over 2 rank(s) of a node"


def test_dtypes_that_are_not_cast_are_gathered_as_they_are() -> None:
    module = nn.ParameterList([nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(4, dtype=torch.int32), False)])
    model = nn.Sequential()
    model.params = module
    (unit,) = plan(model, mixed_precision=HALF, world_size=2).units
    assert unit.size.per_rank == 4 * 4 + 2 * 4
    assert unit.size.gathered == 2 * (4 * 2 + 2 * 4)


@pytest.mark.parametrize("world_size", [0, -2])
def test_no_number_of_ranks_is_refused(world_size: int) -> None:
    with pytest.raises(ValueError, match=rf"at least 1, not {world_size}"):
        plan(build(), world_size=world_size)


def planned_and_sharded(rank: int, world_size: int, arguments: dict[str, Any], shape: tuple[int, ...] | None) -> None:
    """Worker: what the plan said against what is there, sharded and gathered."""
    if shape is not None:
        arguments = {
            **arguments,
            "device_mesh": init_device_mesh(DEVICE.type, shape, mesh_dim_names=("replicate", "shard")),
        }
    for tied in (False, True):
        keywords = {"auto_wrap_policy": POLICIES["transformer"](), "device_id": DEVICE, **arguments}
        model = build(tied=tied)
        made = plan(model, **keywords)
        assert isinstance(model.embed.weight, nn.Parameter) and type(model.embed.weight.data) is torch.Tensor
        fsdp_compat.shard(model, **keywords)
        rows = {row.name: row.parameters for row in memory_report(model).rows}
        assert list(rows) == [unit.fqn for unit in made.units]
        for unit in made.units:
            assert (rows[unit.fqn].full, rows[unit.fqn].per_rank) == (unit.size.full, unit.size.per_rank), unit.fqn
            assert unit.size.shards is not None
        loss_of(model, rank, 0)
        kept = {row.name: row.parameters.unsharded for row in memory_report(model).rows if row.parameters.unsharded}
        assert kept == {unit.fqn: unit.size.gathered for unit in made.units if unit.fqn in kept}
        # Under NO_SHARD nothing is gathered but a copy, which is freed.
        assert ("" in kept) is (made.units[-1].options.strategy is not ShardingStrategy.NO_SHARD)


@pytest.mark.parametrize(
    ("world_size", "arguments", "shape"),
    [
        (2, {"mixed_precision": HALF}, None),
        (4, {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}, None),
        (2, {"sharding_strategy": ShardingStrategy.NO_SHARD, "mixed_precision": HALF}, None),
        (4, {"sharding_strategy": ShardingStrategy._HYBRID_SHARD_ZERO2}, (2, 2)),
    ],
    ids=["half", "uneven", "whole", "hybrid"],
)
def test_shards_weigh_what_the_plan_said(
    pool: Pool, world_size: int, arguments: dict[str, Any], shape: tuple[int, ...] | None
) -> None:
    pool.run(planned_and_sharded, world_size, arguments, shape)


def from_groups(rank: int, world_size: int) -> tuple[list[str], str]:
    """Worker: where the number of ranks comes from, and what is said of two answers."""
    pair = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
    # Nothing below waits for the other one of the pair, which would find this process gone while it connects.
    dist.barrier(pair)
    module = nn.Linear(16, 16, bias=False)
    lines = [str(plan(module, **chosen)).splitlines()[-1] for chosen in ({}, {"process_group": pair})]
    try:
        plan(module, process_group=pair, world_size=4)
    except ValueError as error:
        return lines, str(error)
    return lines, ""


def test_groups_have_their_own_number_of_ranks(pool: Pool) -> None:
    for lines, error in pool.run(from_groups, 4):
        assert lines == [
            "per rank: split into 4, from the default process group",
            "per rank: split into 2, from process_group",
        ]
        assert error == "pass either world_size or process_group, which has its own number of ranks, not both"
