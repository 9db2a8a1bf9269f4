"""summon_full_params: whole, full-precision parameters inside, shards with the changes after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import fsdp_compat
from fsdp_compat import MixedPrecision, ShardingStrategy, summon_full_params
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.models import Model, build, loss_of, tokens
from tests.shim.parallel import Mlps, tensor_parallel
from tests.shim.training import POLICIES, quiet_fsdp1, weights_here, weights_of


def sharded(*, tied: bool = False, **keywords: Any) -> Model:
    return fsdp_compat.shard(
        build(tied=tied), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, use_orig_params=True, **keywords
    )


def summoned(rank: int, world_size: int, tied: bool, strategy: str, trained: bool) -> None:
    """Worker: values, types and identities inside and outside, with and without writeback, before and after steps."""
    model, reference = sharded(tied=tied, sharding_strategy=ShardingStrategy[strategy]), build(tied=tied)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if trained:
        loss_of(model, rank, 0).backward()
        optimizer.step()
        reference.load_state_dict(weights_of(model), strict=False)
        with torch.no_grad():
            model(tokens(rank, 1))
    shards = optimizer.param_groups[0]["params"]
    with summon_full_params(model, writeback=False):
        inside = dict(model.named_parameters())
        for name, param in reference.named_parameters():
            assert type(inside[name]) is nn.Parameter
            assert torch.equal(inside[name], param)
        assert (model.head.weight is model.embed.weight) is tied
        with torch.no_grad():
            before = model.norm.weight.clone()
            model.norm.weight.fill_(9.0)
    assert all(param is shard for param, shard in zip(model.parameters(), shards, strict=True))
    with summon_full_params(model), torch.no_grad():
        # FSDP1 has the parameter itself under NO_SHARD, and on a single rank; a forward has left the root gathered.
        assert model.norm.weight.eq(9.0).all() == (trained or strategy == "NO_SHARD" or world_size == 1)
        model.norm.weight.copy_(before)
        for param, plain in zip(model.parameters(), reference.parameters(), strict=True):
            param.mul_(1.25)
            plain.mul_(1.25)
    assert all(param is shard for param, shard in zip(model.parameters(), shards, strict=True))
    expected, weights = weights_here(reference), weights_of(model)
    for name, weight in weights.items():
        assert torch.equal(weight, expected[name]), name
    # A step after the writeback: lost if the forward computed with, or the optimizer wrote to, something else.
    loss = loss_of(model, rank, 2)
    assert loss.item() == loss_of(reference, rank, 2).item()
    loss.backward()
    optimizer.step()
    assert not any(torch.equal(weight, weights[name]) for name, weight in weights_of(model).items())


@pytest.mark.parametrize(
    ("world_size", "tied", "strategy", "trained"),
    [
        (2, False, "FULL_SHARD", False),
        (2, False, "FULL_SHARD", True),
        (2, True, "FULL_SHARD", True),
        (2, False, "SHARD_GRAD_OP", True),
        (2, True, "NO_SHARD", True),
        (3, True, "FULL_SHARD", False),
    ],
)
def test_changes_survive_and_identities_stay(
    pool: Pool, world_size: int, tied: bool, strategy: str, trained: bool
) -> None:
    pool.run(summoned, world_size, tied, strategy, trained)


def in_half_precision(rank: int, world_size: int) -> None:
    model = sharded(mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16))
    model(tokens(rank, 0))
    with summon_full_params(model):
        for param, plain in zip(model.parameters(), build().parameters(), strict=True):
            assert torch.equal(param, plain)


def test_parameters_are_in_full_precision(pool: Pool) -> None:
    pool.run(in_half_precision, ranks(2))


def own_unit_only(rank: int, world_size: int, strategy: str) -> None:
    """Worker: recurse=False gives the root's parameters whole, and a forward inside gathers the others."""
    model = sharded(sharding_strategy=ShardingStrategy[strategy])
    reference = build()
    with summon_full_params(model, recurse=False, writeback=False):
        assert type(model.head.weight) is nn.Parameter
        assert isinstance(model.blocks[0].up.weight, DTensor)
        for step in range(2):
            with torch.no_grad():
                assert torch.equal(model(tokens(rank, step)), reference(tokens(rank, step)))
            assert type(model.head.weight) is nn.Parameter
    assert isinstance(model.head.weight, DTensor)
    block = model.blocks[1]
    with summon_full_params(block, recurse=False):
        assert type(block.up.weight) is nn.Parameter
        assert isinstance(model.head.weight, DTensor)
        with torch.no_grad():
            assert torch.equal(model(tokens(rank, 0)), reference(tokens(rank, 0)))
            block.up.weight.zero_()
            reference.blocks[1].up.weight.zero_()
    with torch.no_grad():
        assert torch.equal(model(tokens(rank, 0)), reference(tokens(rank, 0)))
    loss_of(model, rank, 0).backward()
    assert all(isinstance(param.grad, DTensor) for param in model.parameters())


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_forward_works_where_only_the_root_is_summoned(pool: Pool, strategy: str) -> None:
    pool.run(own_unit_only, ranks(2), strategy)


def forward_with_graph(rank: int, world_size: int, strategy: str) -> None:
    """Worker: once the model has trained, a forward inside that builds a graph computes with what is whole there."""
    model, reference = sharded(sharding_strategy=ShardingStrategy[strategy]), build()
    for step in range(2):
        loss_of(model, rank, step).backward()
        with summon_full_params(model, writeback=False):
            output = model(tokens(rank, step))
            assert output.requires_grad
            assert torch.equal(output, reference(tokens(rank, step)))
            assert type(model.head.weight) is nn.Parameter
    assert all(isinstance(param.grad, DTensor) for param in model.parameters())


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
def test_a_forward_inside_may_build_a_graph(pool: Pool, strategy: str) -> None:
    pool.run(forward_with_graph, ranks(2), strategy)


def state_inside(rank: int, world_size: int) -> None:
    """Worker: what reads or replaces the model's state inside meets whole tensors, and changes are kept."""
    model, other = sharded(), build(seed=5)
    with summon_full_params(model):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(other.state_dict())
        model.to(torch.float32)
        model.apply(lambda module: None)
    for name, value in build().state_dict().items():
        assert type(state[name]) is torch.Tensor
        assert torch.equal(state[name], value)
    expected = weights_here(other)
    for name, weight in weights_of(model).items():
        assert torch.equal(weight, expected[name])
    loss = loss_of(model, rank, 0)
    assert loss.item() == loss_of(other, rank, 0).item()
    loss.backward()
    assert all(isinstance(param.grad, DTensor) for param in model.parameters())


def test_state_is_whole_inside(pool: Pool) -> None:
    pool.run(state_inside, ranks(2))


def gradients(rank: int, world_size: int) -> None:
    """Worker: gradients come whole and averaged, and changes to them reach the shards."""
    model, reference = sharded(), build()
    for other in range(world_size):
        (loss_of(reference, other, 0) / world_size).backward()
    loss_of(model, rank, 0).backward()
    with summon_full_params(model, with_grads=True):
        for name, param in reference.named_parameters():
            torch.testing.assert_close(model.get_parameter(name).grad, param.grad, rtol=1e-6, atol=1e-7)
        model.head.weight.grad.fill_(3.0)
        model.norm.bias.grad = None
    assert model.head.weight.grad.to_local().eq(3.0).all()
    assert model.norm.bias.grad is None


def test_gradients_are_summoned_and_written_back(pool: Pool) -> None:
    pool.run(gradients, ranks(2))


def on_one_rank(rank: int, world_size: int) -> None:
    model = sharded()
    with summon_full_params(model, rank0_only=True, writeback=False, offload_to_cpu=True):
        kind = nn.Parameter if rank == 0 else DTensor
        assert all(type(param) is kind or isinstance(param, kind) for param in model.parameters())
    assert all(isinstance(param, DTensor) for param in model.parameters())


def test_other_ranks_keep_their_shards_with_rank0_only(pool: Pool) -> None:
    pool.run(on_one_rank, ranks(2))


def after_an_error(rank: int, world_size: int) -> None:
    model = sharded()
    with contextlib.suppress(KeyError), summon_full_params(model), torch.no_grad():
        model.norm.weight.fill_(5.0)
        raise KeyError
    assert model.norm.weight.to_local().eq(5.0).all()
    with summon_full_params(model, writeback=False):
        assert type(model.norm.weight) is nn.Parameter


def test_an_error_inside_restores_the_shards(pool: Pool) -> None:
    pool.run(after_an_error, ranks(2))


def test_a_plain_module_is_left_alone() -> None:
    model = build()
    before = dict(model.named_parameters())
    with summon_full_params(model), summon_full_params(model, recurse=False):
        assert all(param is before[name] for name, param in model.named_parameters())


def under_tensor_parallelism(rank: int, world_size: int, shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Worker: inside, parameters are the tensor-parallel ones of before; values and gradients are written back."""
    mesh = init_device_mesh(DEVICE.type, shape, mesh_dim_names=names)
    tp, hybrid = mesh["tp"], len(shape) == 3
    before, expected = tensor_parallel(Mlps(), tp), dict(Mlps().named_parameters())
    strategy = ShardingStrategy.HYBRID_SHARD if hybrid else ShardingStrategy.FULL_SHARD
    model = fsdp_compat.shard(
        tensor_parallel(Mlps(), tp), device_mesh=mesh[names[:-1]], device_id=DEVICE, sharding_strategy=strategy
    )
    model(torch.arange(4, device=DEVICE).view(2, 2) + mesh.get_local_rank(names[0])).sum().backward()
    sharded_params = dict(model.named_parameters())
    gradients = {name: param.grad.full_tensor() for name, param in sharded_params.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with summon_full_params(model, with_grads=True), torch.no_grad():
        inside = dict(model.named_parameters())
        for name, param in before.named_parameters():
            assert type(inside[name]) is type(param), name
            local, known = inside[name], param
            if isinstance(param, DTensor):
                assert inside[name].device_mesh == tp
                assert inside[name].placements == param.placements
                local, known = inside[name].to_local(), param.to_local()
                assert torch.equal(inside[name].grad.full_tensor(), gradients[name])
            assert torch.equal(local, known.to(DEVICE)), name
            inside[name].mul_(3.0)
            inside[name].grad.mul_(2.0)
    assert dict(model.named_parameters()) == sharded_params
    whole = {name: param.full_tensor() for name, param in model.named_parameters()}
    for name, value in expected.items():
        assert torch.equal(whole[name], value.detach().to(DEVICE) * 3.0), name
    optimizer.step()
    for name, param in model.named_parameters():
        assert torch.equal(param.full_tensor(), whole[name] - 0.5 * 2.0 * gradients[name]), name
    with summon_full_params(model, rank0_only=True, writeback=False):
        kept = isinstance(model.norm.weight, DTensor)
        assert kept is (mesh.get_local_rank(names[-2]) != 0)
    with summon_full_params(model, writeback=False), torch.no_grad():
        model.blocks[0].up.weight.zero_()
    assert not model.blocks[0].up.weight.full_tensor().eq(0).all()


@pytest.mark.parametrize(("shape", "names"), [((2, 2), ("dp", "tp")), ((1, 2, 2), ("rep", "dp", "tp"))])
def test_tensor_parallel_parameters_are_gathered_over_the_data_parallel_ranks(
    pool: Pool, shape: tuple[int, ...], names: tuple[str, ...]
) -> None:
    pool.run(under_tensor_parallelism, 4, shape, names)


def refused(rank: int, world_size: int, action: Callable[[Model], None]) -> str:
    model = sharded()
    try:
        action(model)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        if "during forward/backward" not in str(error):
            assert all(isinstance(param, DTensor) for param in model.parameters())
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def summon_twice(model: Model) -> None:
    with summon_full_params(model), summon_full_params(model.blocks[0]):
        pass


def summon_in_forward(model: Model) -> None:
    def look(module: nn.Module, args: object) -> None:
        with summon_full_params(model):
            pass

    model.blocks[0].up.register_forward_pre_hook(look)
    model(tokens(0, 0))


def summon_in_backward(model: Model) -> None:
    def look(grad: torch.Tensor) -> None:
        with summon_full_params(model):
            pass

    output = model(tokens(0, 0))
    output.register_hook(look)
    output.sum().backward()


def exchange(model: Model) -> None:
    with summon_full_params(model):
        model.norm.weight = nn.Parameter(torch.ones(2))


def train_inside(model: Model) -> None:
    with summon_full_params(model):
        loss_of(model, 0, 0).backward()


def write_from_one_rank(model: Model) -> None:
    with summon_full_params(model, rank0_only=True):
        pass


def gradients_on_the_cpu(model: Model) -> None:
    with summon_full_params(model, with_grads=True, offload_to_cpu=True):
        pass


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (summon_twice, "AssertionError: Cannot manually unshard parameters when already unsharding parameters"),
        (summon_in_forward, "AssertionError: Cannot manually unshard parameters during forward/backward"),
        (summon_in_backward, "AssertionError: Cannot manually unshard parameters during forward/backward"),
        (exchange, "RuntimeError: summon_full_params cannot write back LayerNorm.weight"),
        (train_inside, "RuntimeError: a backward ran inside summon_full_params"),
        (write_from_one_rank, "NotImplementedError: writeback=True and rank0_only=True is not supported"),
        (gradients_on_the_cpu, "NotImplementedError: with_grads=True and offload_to_cpu=True is not supported"),
    ],
)
def test_what_would_lose_something_is_refused(pool: Pool, action: Callable[[Model], None], message: str) -> None:
    for answer in pool.run(refused, ranks(2), action):
        assert answer.startswith(message)


def changed_gradients(rank: int, world_size: int, strategy: str, writeback: bool) -> list[dict[str, torch.Tensor]]:
    """Worker: the weights after a step with gradients that were doubled inside, under FSDP1 and under the shim."""
    results = []
    for face in (FSDP1, fsdp_compat.FSDP):
        with quiet_fsdp1():
            model: Any = face(
                build(),
                sharding_strategy=ShardingStrategy[strategy],
                auto_wrap_policy=POLICIES["transformer"](),
                device_id=DEVICE,
                use_orig_params=True,
            )
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss_of(model, rank, 0).backward()
            with face.summon_full_params(model, writeback=writeback, with_grads=True):
                for param in model.parameters():
                    param.grad *= 2
            optimizer.step()
            with face.summon_full_params(model):
                results.append(weights_here(model))
    return results


@pytest.mark.parametrize("writeback", [True, False])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_changed_gradients_are_kept_as_by_fsdp1(pool: Pool, strategy: str, writeback: bool) -> None:
    for theirs, ours in pool.run(changed_gradients, 2, strategy, writeback):
        assert theirs.keys() == ours.keys()
        assert all(torch.equal(weight, ours[name]) for name, weight in theirs.items())


def read_natively(rank: int, world_size: int, with_gradients: bool) -> None:
    """Worker: a model of ``fully_shard`` alone, whose root is gathered where the block begins, trains on."""
    results = []
    for reads in (False, True):
        model = fully_shard(build().to(DEVICE), mesh=init_device_mesh(DEVICE.type, (world_size,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            with contextlib.nullcontext() if with_gradients else torch.no_grad():
                loss_of(model, rank, 9)
            if reads:
                with summon_full_params(model, writeback=False):
                    assert all(type(param) is nn.Parameter for param in model.parameters())
            loss = loss_of(model, rank, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([param.full_tensor() for param in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("with_gradients", [True, False])
def test_a_model_that_is_sharded_natively_trains_on_after_the_block(pool: Pool, with_gradients: bool) -> None:
    pool.run(read_natively, 2, with_gradients)
