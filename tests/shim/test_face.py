"""FullyShardedDataParallel by its old name: FSDP1-style code with nothing but its import changed."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as dcp_state
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.tensor import DTensor

import fsdp_compat
from fsdp_compat import (
    FSDP,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    OptimStateKeyType,
    ShardedGradScaler,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
    enable_wrap,
    wrap,
)
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import Block, Model, build, loss_of, tokens
from tests.shim.training import POLICIES, Outcome, assert_same, clean, quiet_fsdp1, weights_here, weights_of

FULL, SHARDED, LOCAL = (
    StateDictType.FULL_STATE_DICT,
    StateDictType.SHARDED_STATE_DICT,
    StateDictType.LOCAL_STATE_DICT,
)


def wrapped(model: Model | None = None, **keywords: Any) -> Any:
    model = build() if model is None else model
    keywords = {"auto_wrap_policy": POLICIES["transformer"](), "device_id": DEVICE, **keywords}
    return FullyShardedDataParallel(model, use_orig_params=True, **keywords)


def script(rank: int, world_size: int, side: str) -> Outcome:
    """Worker: a training script written for FSDP1, where the only thing that varies is where its names come from."""
    names: Any = FSDP1 if side == "fsdp1" else fsdp_compat.FullyShardedDataParallel
    with quiet_fsdp1():
        policy = functools.partial(fsdp_compat.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        model = names(build(), auto_wrap_policy=policy, device_id=DEVICE, use_orig_params=True)
        assert isinstance(model, names)
        assert all(isinstance(block, names) for block in model.module.blocks)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses, norms = [], []
        for step in range(3):
            model.train()
            with model.no_sync():
                loss_of(model, rank, step).backward()
            loss = loss_of(model, rank, step + 50)
            loss.backward()
            norms.append(model.clip_grad_norm_(1e3).item())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        with names.summon_full_params(model), torch.no_grad():
            for param in model.parameters():
                param.mul_(1.5)
        model.eval()
        with torch.no_grad():
            losses.append(loss_of(model, rank, 70).item())
        state = {name: value.clone() for name, value in model.state_dict().items()}
        with names.state_dict_type(model, FULL, FullStateDictConfig(rank0_only=True)):
            assert bool(model.state_dict()) is (rank == 0)
        model.load_state_dict({name: value * 2 for name, value in state.items()})
        losses.append(loss_of(model, rank, 71).item())
        return Outcome(losses, norms, {clean(name): value for name, value in state.items()})


def test_a_script_for_fsdp1_runs_unchanged(pool: Pool) -> None:
    for theirs, ours in zip(pool.run(script, 2, "fsdp1"), pool.run(script, 2, "compat"), strict=True):
        assert_same(theirs, ours)


def identity(rank: int, world_size: int) -> None:
    """Worker: what kind of object comes back."""
    plain = build()
    model = wrapped(plain)
    assert model is plain
    assert model.module is model
    assert isinstance(model, Model)
    assert isinstance(model, FSDPModule)
    assert isinstance(model, FSDP)
    assert issubclass(type(model), FSDP)
    assert not isinstance(nn.Linear(1, 1), FSDP)
    assert not issubclass(nn.Linear, FSDP)
    native = fully_shard(nn.Linear(2, 2), mesh=init_device_mesh(DEVICE.type, (world_size,)))
    assert isinstance(native, FSDP)
    assert type(model).__name__ == Model.__name__ == "Model"
    assert FSDP.fsdp_modules(model) == [model, *model.blocks]
    assert FSDP.fsdp_modules(model, root_only=True) == [model]
    assert wrapped(model, auto_wrap_policy=None) is model
    model(tokens(rank, 0))
    assert model.check_is_root()
    assert not model.blocks[0].check_is_root()
    sequential = FSDP(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), device_id=DEVICE)
    assert type(sequential[:2]) is nn.Sequential
    assert type(sequential[0]) is nn.Linear
    with pytest.raises(AssertionError, match="does not support deepcopy"):
        copy.deepcopy(model)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(model)


def test_the_object_is_the_module(pool: Pool) -> None:
    pool.run(identity, 2)


class Holder(nn.Module):
    """Has a child of its own named ``module``, as wrappers do."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


def own_module(rank: int, world_size: int) -> None:
    holder = FSDP(Holder(), device_id=DEVICE)
    assert type(holder.module) is nn.Linear
    assert list(holder.state_dict()) == ["module.weight", "module.bias"]
    holder(torch.ones(2, 3, device=DEVICE)).sum().backward()


def test_a_child_named_module_stays_reachable(pool: Pool) -> None:
    pool.run(own_module, 2)


def states(rank: int, world_size: int, strategy: str) -> None:
    """Worker: kinds of state dicts, from the model and from a module around it, against the unsharded values."""
    precision = MixedPrecision(param_dtype=torch.bfloat16)
    model = wrapped(build(tied=True), sharding_strategy=ShardingStrategy[strategy], mixed_precision=precision)
    expected = build(tied=True).state_dict()
    with torch.no_grad():
        model(tokens(rank, 0))
    around = nn.ModuleDict({"inner": model})
    for state, prefix in ((model.state_dict(), ""), (around.state_dict(), "inner.")):
        assert [key.removeprefix(prefix) for key in state] == list(expected)
        for key, value in state.items():
            assert type(value) is torch.Tensor
            assert torch.equal(value, expected[key.removeprefix(prefix)])
    block = model.blocks[0].state_dict()
    assert torch.equal(block["up.weight"], expected["blocks.0.up.weight"])
    before = weights_of(model)["norm.weight"]
    model.state_dict()["norm.weight"].fill_(77.0)
    assert torch.equal(weights_of(model)["norm.weight"], before)
    with FSDP.state_dict_type(model, SHARDED, ShardedStateDictConfig(offload_to_cpu=True)):
        shards = model.state_dict()
        assert all(isinstance(value, DTensor) for value in shards.values())
        assert FSDP.get_state_dict_type(model).state_dict_type is SHARDED
        model.load_state_dict(shards)
    assert FSDP.get_state_dict_type(model).state_dict_type is FULL
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    previous = FSDP.set_state_dict_type(around, FULL, config, FullOptimStateDictConfig(rank0_only=True))
    assert previous.state_dict_config == FullStateDictConfig()
    state = around.state_dict()
    assert list(state) == ([f"inner.{key}" for key in expected] if rank == 0 else [])
    FSDP.set_state_dict_type(model, previous.state_dict_type, previous.state_dict_config)
    other = build(seed=8, tied=True).state_dict()
    missing = around.load_state_dict({f"inner.{key}": value for key, value in other.items()})
    assert missing.missing_keys == missing.unexpected_keys == []
    for key, value in model.state_dict().items():
        assert torch.equal(value, other[key])
    assert model.head.weight is model.embed.weight
    partial = model.load_state_dict({"norm.weight": torch.full((7,), 3.0)}, strict=False)
    assert "embed.weight" in partial.missing_keys
    assert model.state_dict()["norm.weight"].eq(3.0).all()
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({"norm.weight": torch.ones(3)}, strict=False)


@pytest.mark.parametrize(("strategy", "world_size"), [("FULL_SHARD", 2), ("SHARD_GRAD_OP", 3), ("NO_SHARD", 2)])
def test_state_dicts(pool: Pool, strategy: str, world_size: int) -> None:
    pool.run(states, world_size, strategy)


def checkpointed(rank: int, world_size: int, side: str, when: str, accumulate: bool) -> Outcome:
    """Worker: activation checkpointing put around blocks before or after wrapping, and state that goes through it."""
    names: Any = FSDP1 if side == "fsdp1" else FSDP
    model = build()
    for_blocks = {"check_fn": lambda module: isinstance(module, Block)}
    if when == "before":
        apply_activation_checkpointing(model, **for_blocks)
    with quiet_fsdp1():
        model = names(model, auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, use_orig_params=True)
        if when == "after":
            apply_activation_checkpointing(model, **for_blocks)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for step in range(3):
            with model.no_sync() if accumulate else contextlib.nullcontext():
                loss_of(model, rank, 40 + step).backward()
            loss = loss_of(model, rank, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        state = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict({name: value / 2 for name, value in state.items()})
        losses.append(loss_of(model, rank, 9).item())
        if side == "compat":
            optim = FSDP.optim_state_dict(model, optimizer)
            assert list(optim["state"]) == list(state)
            optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, optim))
    return Outcome(losses, [], state)


@pytest.mark.parametrize(("when", "accumulate"), [("before", False), ("after", False), ("after", True)])
def test_activation_checkpointing(pool: Pool, when: str, accumulate: bool) -> None:
    theirs = pool.run(checkpointed, 2, "fsdp1", when, accumulate)
    for first, second in zip(theirs, pool.run(checkpointed, 2, "compat", when, accumulate), strict=True):
        assert_same(first, second)


def wrapped_in_turn(rank: int, world_size: int) -> None:
    """Worker: checkpoint wrappers inside and around sharded modules, whose parts of the names come and go."""
    inner = FSDP(checkpoint_wrapper(nn.Linear(5, 5)), device_id=DEVICE)
    model = FSDP(checkpoint_wrapper(nn.Sequential(inner, checkpoint_wrapper(nn.Linear(5, 5)))), device_id=DEVICE)
    torch.manual_seed(0)
    expected = {
        f"{index}.{name}": torch.rand(5, 5)[0] if name == "bias" else torch.rand(5, 5)
        for index in (0, 1)
        for name in ("weight", "bias")
    }
    for kind in (FULL, SHARDED):
        model.load_state_dict(expected)
        with FSDP.state_dict_type(model, kind):
            state = model.state_dict()
            assert state.keys() == expected.keys()
            model.load_state_dict({name: value * 0 for name, value in expected.items()})
            model.load_state_dict(state)
        for name, value in model.state_dict().items():
            assert torch.equal(value.cpu(), expected[name]), name


def test_state_goes_through_checkpoint_wrappers_in_turn(pool: Pool) -> None:
    pool.run(wrapped_in_turn, 2)


def refused_settings(rank: int, world_size: int) -> None:
    model = wrapped()
    with pytest.raises(NotImplementedError, match="flat parameters"):
        FSDP.set_state_dict_type(model, LOCAL)
    for face in (FSDP, model, model.blocks[0]):
        with pytest.raises(RuntimeError, match=r"Expected state_dict_config of type FullStateDictConfig.*got Sharded"):
            face.set_state_dict_type(model, FULL, ShardedStateDictConfig())
    for call in (FSDP.get_state_dict_type, lambda module: FSDP.set_state_dict_type(module, FULL)):
        with pytest.raises(ValueError, match="Linear has no FSDP units"):
            call(nn.Linear(1, 1))
    with model.state_dict_type(model.blocks[0], SHARDED), model.blocks[1].summon_full_params(model.blocks[2]):
        assert isinstance(model.blocks[0].state_dict()["gain"], DTensor)
        assert isinstance(model.blocks[1].gain, DTensor)
        assert not isinstance(model.blocks[2].gain, DTensor)
        assert not isinstance(model.blocks[1].state_dict()["gain"], DTensor)
    FSDP.set_state_dict_type(model.blocks[0], SHARDED)
    with pytest.raises(ValueError, match="different state dict settings"):
        FSDP.get_state_dict_type(model)


def test_settings_that_cannot_be_are_refused(pool: Pool) -> None:
    pool.run(refused_settings, 2)


def optimizer_states(rank: int, world_size: int) -> None:
    """Worker: each of FSDP1's ways to take an optimizer's state leads back to the same state."""
    model = wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss_of(model, rank, 0).backward()
    optimizer.step()
    expected = FSDP.optim_state_dict(model, optimizer)
    assert type(expected["state"]["head.weight"]["exp_avg"]) is torch.Tensor

    def check(loadable: dict[str, Any]) -> None:
        fresh = torch.optim.AdamW(model.parameters(), lr=0.5)
        fresh.load_state_dict(loadable)
        assert fresh.param_groups[0]["lr"] == 0.01
        found = fsdp_compat.optim_state_dict(model, fresh)
        for name, state in expected["state"].items():
            for key, value in state.items():
                assert torch.equal(value, found["state"][name][key])

    check(FSDP.optim_state_dict_to_load(model, optimizer, expected))
    check(FSDP.shard_full_optim_state_dict(expected, model, optim=optimizer))
    first = FSDP.full_optim_state_dict(model, optimizer)
    assert bool(first) is (rank == 0)
    check(FSDP.scatter_full_optim_state_dict(first or None, model, optim=optimizer))
    shards = FSDP.sharded_optim_state_dict(model, optimizer)
    assert isinstance(shards["state"]["head.weight"]["exp_avg"], DTensor)
    check(FSDP.flatten_sharded_optim_state_dict(shards, model, optimizer))
    with FSDP.state_dict_type(model, SHARDED, None, ShardedOptimStateDictConfig(offload_to_cpu=False)):
        sharded = FSDP.optim_state_dict(model, optimizer)
        assert isinstance(sharded["state"]["head.weight"]["exp_avg"], DTensor)
        check(FSDP.optim_state_dict_to_load(model, optimizer, sharded))
    with FSDP.state_dict_type(model, FULL, None, FullOptimStateDictConfig(rank0_only=True)):
        mine = FSDP.optim_state_dict(model, optimizer)
        assert bool(mine) is (rank == 0)
        fresh = torch.optim.AdamW(model.parameters(), lr=0.5)
        FSDP.optim_state_dict_to_load(model, fresh, mine, load_directly=True)
        assert fresh.param_groups[0]["lr"] == 0.01
    numbered = FSDP.rekey_optim_state_dict(expected, OptimStateKeyType.PARAM_ID, model, optim=optimizer)
    names = [name for name, _ in model.named_parameters()]
    assert list(numbered["state"]) == list(range(len(names)))
    again = FSDP.rekey_optim_state_dict(numbered, OptimStateKeyType.PARAM_NAME, model, optim=optimizer)
    assert list(again["state"]) == names


def test_optimizer_states(pool: Pool) -> None:
    pool.run(optimizer_states, 2)


def by_hand(rank: int, world_size: int) -> None:
    """Worker: enable_wrap and wrap, nested calls that replace an attribute by itself, apply on whole parameters."""
    with enable_wrap(wrapper_cls=FSDP, device_id=DEVICE):
        model = build()
        for index, block in enumerate(model.blocks):
            model.blocks[index] = wrap(block)
        model = wrap(model)
    assert len(FSDP.fsdp_modules(model)) == 4
    shapes = []

    def record(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            shapes.append(tuple(module.weight.shape))
            assert type(module.weight) is nn.Parameter
            module.weight.data.fill_(0.5)

    assert model.apply(record) is model
    assert shapes == [(11, 7), (7, 11)] * 3 + [(13, 7)]
    assert all(weight.eq(0.5).all() for name, weight in weights_of(model).items() if "up.weight" in name)
    loss_of(model, rank, 0).backward()


def test_wrapping_by_hand(pool: Pool) -> None:
    pool.run(by_hand, 2)


def with_checkpoint_api(rank: int, world_size: int) -> None:
    """Worker: torch's own state dict functions work on what FSDP(...) returns."""
    model = wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss_of(model, rank, 0).backward()
    optimizer.step()
    options = dcp_state.StateDictOptions(full_state_dict=True)
    whole, optim = dcp_state.get_state_dict(model, optimizer, options=options)
    for name, weight in weights_of(model).items():
        assert torch.equal(whole[name].cpu(), weight)
    other, expected = build(seed=3).state_dict(), weights_here(build(seed=3))
    dcp_state.set_state_dict(model, optimizer, model_state_dict=other, optim_state_dict=optim, options=options)
    for name, weight in weights_of(model).items():
        assert torch.equal(expected[name], weight)


def test_torch_state_dict_functions_work(pool: Pool) -> None:
    pool.run(with_checkpoint_api, 2)


def optimizer_first(rank: int, world_size: int, side: str) -> Outcome:
    """Worker: an optimizer that is built before the model is wrapped, and that holds other parameters too."""
    model, extra = build(), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam(
        [{"params": list(model.parameters())[:4], "lr": 0.1}, {"params": [*list(model.parameters())[4:], extra]}]
    )
    names: Any = FSDP1 if side == "fsdp1" else FSDP
    with quiet_fsdp1():
        model = names(model, auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, use_orig_params=True)
        losses, norms = [], []
        for step in range(2):
            optimizer.zero_grad()
            loss = loss_of(model, rank, step)
            loss.backward()
            held = [param for group in optimizer.param_groups for param in group["params"]]
            norms.append(float(sum(param.grad is not None and param.grad.numel() > 0 for param in held) > 0))
            optimizer.step()
            losses.append(loss.item())
        with names.summon_full_params(model):
            weights = weights_here(model)
    return Outcome(losses, norms, weights)


def test_an_optimizer_built_first_trains_as_in_fsdp1(pool: Pool) -> None:
    theirs = pool.run(optimizer_first, 2, "fsdp1")
    for first, second in zip(theirs, pool.run(optimizer_first, 2, "compat"), strict=True):
        assert_same(first, second)


def scaled(rank: int, world_size: int) -> None:
    """Worker: an overflow in an unsharded gradient of one rank makes all ranks skip the step."""
    model = build()
    wrapped(model, ignored_modules=[model.head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    scaler = ShardedGradScaler(DEVICE.type, init_scale=4.0, process_group=dist.group.WORLD)
    before = weights_of(model)
    scaler.scale(loss_of(model, rank, 0)).backward()
    if rank == 1:
        model.head.weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(model).items())
    optimizer.zero_grad()
    scaler.scale(loss_of(model, rank, 0)).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert not any(torch.equal(weight, before[name]) for name, weight in weights_of(model).items())


def test_all_ranks_skip_a_step_together(pool: Pool) -> None:
    pool.run(scaled, 2)


def test_inheriting_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match="Mine cannot inherit from fsdp_compat's FullyShardedDataParallel"):

        class Mine(FullyShardedDataParallel):
            pass


def test_every_public_member_of_fsdp1_is_there() -> None:
    sharded_class = fsdp_compat.face.fsdp._Methods
    for name, member in vars(FSDP1).items():
        if name.startswith("_") or name in {"forward", "named_parameters", "named_buffers"}:
            continue
        assert hasattr(sharded_class, name), name
        if isinstance(member, staticmethod):
            ours = getattr(FSDP, name)
            theirs = member.__func__
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name
    assert list(inspect.signature(FSDP).parameters) == [*inspect.signature(FSDP1).parameters, "reshard_after_forward"]
