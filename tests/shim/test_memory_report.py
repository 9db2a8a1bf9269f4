"""memory_report against bytes counted by hand: shapes cut into chunks, never asked of torch a second time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fsdp_compat
from fsdp_compat import MemoryReport, UnitBytes, Usage, memory_report
from fsdp_compat.torch_.versions import TORCH
from tests.device import DEVICE, device_of
from tests.pool import Pool
from tests.shim.gates import needs_torch
from tests.shim.models import Block, Model, build, loss_of
from tests.shim.training import POLICIES

FP32 = 4
UNITS = ("blocks.0", "blocks.1", "blocks.2", "")


def shapes(unit: str, *, tied: bool = False) -> list[torch.Size]:
    """Shapes of what each unit of the model manages, with Block as the policy."""
    model = build(tied=tied)
    module = model.get_submodule(unit)
    return [param.shape for name, param in module.named_parameters() if unit or not name.startswith("blocks.")]


def numel(unit: str, **options: Any) -> int:
    return sum(map(math.prod, shapes(unit, **options)))


def padded(unit: str, shards: int, **options: Any) -> int:
    """Elements of one rank's shards, filled up to equal size."""
    return sum(math.ceil(shape[0] / shards) * math.prod(shape[1:]) for shape in shapes(unit, **options))


def held(unit: str, shards: int, index: int, **options: Any) -> int:
    """Elements of the shards themselves."""
    rows = [(math.ceil(shape[0] / shards), shape) for shape in shapes(unit, **options)]
    return sum(max(0, min(step, shape[0] - index * step)) * math.prod(shape[1:]) for step, shape in rows)


def at(rank: int, size: int) -> dict[str, int]:
    """``size`` bytes where that rank computes."""
    return {str(device_of(rank)): size}


@dataclass(frozen=True)
class Reports:
    """One training step, looked at from one rank."""

    sharded: MemoryReport
    after_forward: MemoryReport
    after_backward: MemoryReport
    after_step: MemoryReport
    after_zero_grad: MemoryReport
    text: str


def train(rank: int, world_size: int, arguments: dict[str, Any], tied: bool = False) -> Reports:
    """Worker: shard and train one step with Adam."""
    model = build(tied=tied)
    fsdp_compat.shard(model, auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, **arguments)
    optimizer = torch.optim.Adam(model.parameters())
    sharded = memory_report(model, optimizer)
    loss = loss_of(model, rank, 0)
    after_forward = memory_report(model, optimizer)
    loss.backward()
    after_backward = memory_report(model, optimizer)
    optimizer.step()
    after_step = memory_report(model, optimizer)
    optimizer.zero_grad()
    return Reports(sharded, after_forward, after_backward, after_step, memory_report(model, optimizer), str(after_step))


def by_unit(report: MemoryReport, kind: str) -> dict[str, Usage]:
    return {row.name: getattr(row, kind) for row in report.rows}


@pytest.mark.parametrize("world_size", [2, 4])
def test_uneven_shards_are_counted_with_their_padding(pool: Pool, world_size: int) -> None:
    for rank, reports in enumerate(pool.run(train, world_size, {})):
        assert tuple(row.name for row in reports.after_step.rows) == UNITS
        for unit in UNITS:
            per_rank, own = FP32 * padded(unit, world_size), FP32 * held(unit, world_size, rank)
            shards = Usage(FP32 * numel(unit), per_rank, per_rank - own, 0, at(rank, per_rank))
            for report in (reports.sharded, reports.after_backward, reports.after_step, reports.after_zero_grad):
                assert by_unit(report, "parameters")[unit] == shards
            assert by_unit(reports.sharded, "gradients")[unit] == Usage()
            assert by_unit(reports.after_backward, "gradients")[unit] == shards
            assert by_unit(reports.after_zero_grad, "gradients")[unit] == Usage()
            assert by_unit(reports.after_backward, "optimizer")[unit] == Usage()
            steps = FP32 * len(shapes(unit))
            # Adam counts its steps on the CPU.
            state = Usage(2 * FP32 * numel(unit), 2 * own, 0, 0, at(rank, 2 * own)) + Usage(
                steps, steps, 0, 0, {"cpu": steps}
            )
            assert by_unit(reports.after_step, "optimizer")[unit] == state
            assert by_unit(reports.after_zero_grad, "optimizer")[unit] == state
        assert reports.after_step.total.parameters.full == FP32 * sum(map(numel, UNITS))
        assert reports.after_step.total.per_rank == sum(row.per_rank for row in reports.after_step.rows)


@pytest.mark.parametrize("world_size", [2, 4])
def test_what_a_unit_keeps_gathered_comes_beside_its_shards(pool: Pool, world_size: int) -> None:
    for reports in pool.run(train, world_size, {}):
        usages = by_unit(reports.after_forward, "parameters")
        gathered = FP32 * world_size * padded("", world_size)
        assert {unit: usage.unsharded for unit, usage in usages.items()} == dict.fromkeys(UNITS, 0) | {"": gathered}
        assert usages[""].per_rank == FP32 * padded("", world_size) + gathered
        assert usages[""].full == FP32 * numel("")


def resharded(rank: int, world_size: int) -> MemoryReport:
    model = build()
    policy = POLICIES["transformer"]()
    fsdp_compat.shard(model, auto_wrap_policy=policy, device_id=DEVICE, reshard_after_forward=2)
    loss_of(model, rank, 0)
    return memory_report(model)


@needs_torch("2.8", "a root that frees parameters after its forward")
def test_what_stays_on_fewer_ranks_after_the_forward_comes_beside_the_shards(pool: Pool) -> None:
    for report in pool.run(resharded, 4):
        for unit, usage in by_unit(report, "parameters").items():
            assert usage.unsharded == FP32 * 4 * padded(unit, 4) // 2
            assert usage.full == FP32 * numel(unit)


def test_gathered_parameters_have_the_dtype_they_compute_in(pool: Pool) -> None:
    arguments = {
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP,
    }
    for reports in pool.run(train, 2, arguments):
        for unit, usage in by_unit(reports.after_forward, "parameters").items():
            assert usage.unsharded == 2 * 2 * padded(unit, 2)


def test_no_shard_keeps_everything_on_every_rank(pool: Pool) -> None:
    for rank, reports in enumerate(pool.run(train, 2, {"sharding_strategy": ShardingStrategy.NO_SHARD})):
        for kind in ("parameters", "gradients"):
            for unit, usage in by_unit(reports.after_backward, kind).items():
                whole = FP32 * numel(unit)
                assert usage == Usage(whole, whole, 0, 0, at(rank, whole))


def train_hybrid(rank: int, world_size: int) -> Reports:
    mesh = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("replicate", "shard"))
    return train(rank, world_size, {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "device_mesh": mesh})


def test_hybrid_shards_over_the_inner_dimension_alone(pool: Pool) -> None:
    for rank, reports in enumerate(pool.run(train_hybrid, 4)):
        for unit in UNITS:
            per_rank, own = FP32 * padded(unit, 2), FP32 * held(unit, 2, rank % 2)
            expected = Usage(FP32 * numel(unit), per_rank, per_rank - own, 0, at(rank, per_rank))
            assert by_unit(reports.after_step, "parameters")[unit] == expected
            assert by_unit(reports.after_step, "gradients")[unit] == expected


def accumulate(rank: int, world_size: int, param_dtype: torch.dtype | None, hybrid: bool) -> MemoryReport:
    """Worker: one micro-batch whose gradients are not reduced, or in HSDP reduced within the shard group alone."""
    precision = MixedPrecision(param_dtype=param_dtype, reduce_dtype=torch.float32)
    mesh = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("replicate", "shard")) if hybrid else None
    strategy = ShardingStrategy.HYBRID_SHARD if hybrid else ShardingStrategy.FULL_SHARD
    model = fsdp_compat.FSDP(
        build(),
        sharding_strategy=strategy,
        auto_wrap_policy=POLICIES["transformer"](),
        mixed_precision=precision,
        device_id=DEVICE,
        device_mesh=mesh,
    )
    if hybrid:
        model.set_requires_all_reduce(False)
        loss_of(model, rank, 0).backward()
    else:
        with model.no_sync():
            loss_of(model, rank, 0).backward()
    return memory_report(model)


@pytest.mark.parametrize("param_dtype", [None, torch.bfloat16], ids=str)
def test_gradients_not_yet_reduced_are_whole_and_said_to_be(pool: Pool, param_dtype: torch.dtype | None) -> None:
    for rank, report in enumerate(pool.run(accumulate, 2, param_dtype, False)):
        for unit, usage in by_unit(report, "gradients").items():
            # What waits is kept in the dtype that was computed in, as under FSDP1, before torch 2.15.
            kept = param_dtype if param_dtype is not None and Version("2.15") > TORCH else torch.float32
            whole = kept.itemsize * numel(unit)
            assert usage == Usage(whole, whole, 0, whole, at(rank, whole))


def test_gradients_not_yet_all_reduced_count_once(pool: Pool) -> None:
    for rank, report in enumerate(pool.run(accumulate, 4, None, True)):
        for unit, usage in by_unit(report, "gradients").items():
            partial = FP32 * padded(unit, 2)
            assert usage == Usage(FP32 * numel(unit), partial, 0, partial, at(rank, partial))


def test_tied_parameters_count_once(pool: Pool) -> None:
    for reports in pool.run(train, 2, {}, True):
        assert by_unit(reports.after_step, "parameters")[""].full == FP32 * numel("", tied=True)
        assert reports.after_step.total.numel == sum(param.numel() for param in build(tied=True).parameters())


def tied_across_units(rank: int, world_size: int) -> MemoryReport:
    model = build(tied=True)
    fsdp_compat.shard(model, auto_wrap_policy=fsdp_compat.ModuleWrapPolicy({nn.Embedding, nn.Linear}), device_id=DEVICE)
    loss_of(model, rank, 0).backward()
    return memory_report(model)


def test_what_is_tied_across_units_belongs_to_the_one_around_them(pool: Pool) -> None:
    for report in pool.run(tied_across_units, 2):
        usages = by_unit(report, "parameters")
        assert (usages["embed"], usages["head"]) == (Usage(), Usage())
        assert report.total.parameters.full == FP32 * sum(param.numel() for param in build(tied=True).parameters())


def ignoring(rank: int, world_size: int) -> MemoryReport:
    model = build()
    policy = POLICIES["transformer"]()
    fsdp_compat.shard(model, auto_wrap_policy=policy, ignored_modules=[model.head, model.blocks[1]], device_id=DEVICE)
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)
    loss_of(model, rank, 0).backward()
    optimizer.param_groups[0]["params"][-1].grad = torch.ones(3)
    optimizer.step()
    return memory_report(model, optimizer)


def test_what_lies_outside_has_rows_of_its_own(pool: Pool) -> None:
    plain = build()
    outside = FP32 * sum(param.numel() for part in (plain.head, plain.blocks[1]) for param in part.parameters())
    for rank, report in enumerate(pool.run(ignoring, 2)):
        *units, rest, other = report.rows
        assert [row.name for row in units] == ["blocks.0", "blocks.2", ""]
        assert rest.name == "(outside any unit)"
        assert rest.parameters == rest.gradients == rest.optimizer == Usage(outside, outside, 0, 0, at(rank, outside))
        assert other.name == "(not in the model)"
        assert (other.numel, other.parameters, other.gradients) == (0, Usage(), Usage())
        assert other.optimizer == Usage(12, 12, 0, 0, {"cpu": 12})
        assert report.total.optimizer.full == FP32 * (sum(param.numel() for param in plain.parameters()) + 3)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 12, bias=False)
        self.down = nn.Linear(12, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


def tensor_parallel(rank: int, world_size: int) -> tuple[UnitBytes, MemoryReport, MemoryReport]:
    mesh = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(Pair().to(DEVICE), mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    (planned,) = fsdp_compat.plan(model, device_mesh=mesh["data"], device_id=DEVICE).units
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = model(torch.ones(2, 8, device=DEVICE)).sum()
    after_forward = memory_report(model, optimizer)
    loss.backward()
    optimizer.step()
    return planned.size, after_forward, memory_report(model, optimizer)


def test_tensor_parallel_shards_count_as_parts_of_the_whole(pool: Pool) -> None:
    whole = FP32 * 2 * 96
    for rank, (planned, after_forward, report) in enumerate(pool.run(tensor_parallel, 4)):
        assert (planned.full, planned.per_rank, planned.gathered) == (whole, whole // 4, whole // 2)
        (row,) = report.rows
        assert (row.name, row.class_name, row.numel) == ("", "Pair", 192)
        assert row.parameters == row.gradients == row.optimizer == Usage(whole, whole // 4, 0, 0, at(rank, whole // 4))
        assert after_forward.total.parameters.unsharded == whole // 2


def test_cpu_offload_says_where_the_bytes_are(pool: Pool) -> None:
    for reports in pool.run(train, 2, {"cpu_offload": CPUOffload(offload_params=True)}):
        total = reports.after_step.total
        for usage in (total.parameters, total.gradients, total.optimizer):
            assert usage.by_device == {"cpu": usage.per_rank} != {"cpu": 0}


def on_meta(rank: int, world_size: int) -> tuple[MemoryReport, MemoryReport]:
    with torch.device("meta"):
        model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    before = memory_report(model)
    model.to_empty(device=DEVICE)
    return before, memory_report(model)


def test_meta_tensors_take_nothing_yet(pool: Pool) -> None:
    for before, after in pool.run(on_meta, 2):
        for unit in UNITS:
            assert by_unit(before, "parameters")[unit] == Usage(full=FP32 * numel(unit))
            assert by_unit(after, "parameters")[unit].per_rank == FP32 * padded(unit, 2)


def summoned(rank: int, world_size: int) -> tuple[MemoryReport, MemoryReport]:
    model = fsdp_compat.FSDP(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE)
    with fsdp_compat.FSDP.summon_full_params(model):
        inside = memory_report(model)
    return inside, memory_report(model)


def test_summoned_parameters_are_unsharded_copies(pool: Pool) -> None:
    for inside, after in pool.run(summoned, 2):
        for unit in UNITS:
            assert by_unit(inside, "parameters")[unit].full == FP32 * numel(unit)
            assert by_unit(inside, "parameters")[unit].unsharded >= FP32 * numel(unit)
            assert by_unit(after, "parameters")[unit].unsharded == 0


def test_a_model_that_is_not_sharded_lies_outside() -> None:
    model = build(tied=True)
    optimizer = torch.optim.Adam(model.parameters())
    (row,) = memory_report(model, optimizer).rows
    whole = FP32 * sum(param.numel() for param in model.parameters())
    assert (row.name, row.parameters) == ("(outside any unit)", Usage(whole, whole, 0, 0, at(0, whole)))


def test_views_of_one_allocation_count_it_once() -> None:
    flat = torch.zeros(10)
    model = nn.Module()
    model.first, model.second = nn.Parameter(flat[:4]), nn.Parameter(flat[4:8])
    assert memory_report(model).total.parameters == Usage(32, 40, 8, 0, {"cpu": 40})


def test_printed_as_a_table(pool: Pool) -> None:
    first, second = pool.run(train, 2, {})
    *lines, devices = second.text.splitlines()
    assert devices.startswith("by device: ")
    assert lines == [
        "unit      class  elements  parameters  per rank  gradients  per rank  optimizer  per rank  all per rank",
        "blocks.0  Block       187       748 B     420 B      748 B     420 B    1.5 KiB     684 B       1.5 KiB",
        "blocks.1  Block       187       748 B     420 B      748 B     420 B    1.5 KiB     684 B       1.5 KiB",
        "blocks.2  Block       187       748 B     420 B      748 B     420 B    1.5 KiB     684 B       1.5 KiB",
        "(root)    Model       196       784 B     424 B      784 B     424 B    1.5 KiB     736 B       1.5 KiB",
        "total                 757     3.0 KiB   1.6 KiB    3.0 KiB   1.6 KiB    6.0 KiB   2.7 KiB       6.0 KiB",
        "of which padding, to equal shards: parameters 340 B, gradients 340 B",
    ]
    assert "unsharded, next to the shards: parameters 848 B" in str(first.after_forward)


def no_process_group_call(rank: int, world_size: int) -> tuple[int, int]:
    model = fsdp_compat.FSDP(build(), auto_wrap_policy=fsdp_compat.ModuleWrapPolicy({Block}), device_id=DEVICE)
    loss_of(model, rank, 0).backward()
    # Each rank asks another number of times: a collective inside would not return.
    reports = [memory_report(model) for _ in range(1 + 3 * rank)]
    return len(reports), reports[0].total.parameters.per_rank


def test_each_rank_may_ask_alone(pool: Pool) -> None:
    assert [count for count, _ in pool.run(no_process_group_call, 2)] == [1, 4]
