"""Meshes, groups, devices, initialisation and ties: what shard does around fully_shard."""

from __future__ import annotations

import logging
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, _init_utils, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.tensor import DTensor

import fsdp_compat
from fsdp_compat import CPUOffload, ModuleWrapPolicy, ShardingStrategy, shard
from fsdp_compat.applying import left_out
from fsdp_compat.step import reduction
from fsdp_compat.torch_.versions import GLOO_AVERAGES
from tests.device import DEVICE, KIND, ranks
from tests.pool import Pool
from tests.shim.models import Block, Model, build, loss_of, tokens
from tests.shim.training import (
    POLICIES,
    Case,
    Outcome,
    assert_same,
    quiet_fsdp1,
    train_compat,
    train_fsdp1,
    weights_here,
    weights_of,
)

ROUNDING = 1e-12


def hybrid(rank: int, world_size: int, strategy: str, how: str) -> tuple[Outcome, Outcome]:
    """Worker: two replicas of two shards, said with a mesh (named or not) or with a pair of groups."""
    mesh = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("between", "within"))
    if how == "groups":
        arguments: dict[str, Any] = {"process_group": (mesh["within"].get_group(), mesh["between"].get_group())}
    elif how == "unnamed":
        arguments = {"device_mesh": init_device_mesh(DEVICE.type, (2, 2))}
    else:
        arguments = {"device_mesh": mesh}
    case = Case(strategy=strategy, arguments=arguments, accumulate=2, silent=True, double=True)
    return train_fsdp1(rank, case), train_compat(rank, case)


@pytest.mark.parametrize(
    ("strategy", "how"),
    [
        ("HYBRID_SHARD", "mesh"),
        ("HYBRID_SHARD", "groups"),
        ("HYBRID_SHARD", "unnamed"),
        ("_HYBRID_SHARD_ZERO2", "mesh"),
    ],
)
def test_hybrid_strategies_train_as_fsdp1(pool: Pool, strategy: str, how: str) -> None:
    for theirs, ours in pool.run(hybrid, 4, strategy, how):
        assert_same(theirs, ours, ROUNDING)


def layouts(rank: int, world_size: int) -> None:
    """Worker: the mesh that each way of asking leads to."""
    within = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("between", "within"))

    def placed(**keywords: Any) -> tuple[tuple[int, ...], list[int]]:
        param = next(shard(nn.Linear(4, 4), device_id=DEVICE, **keywords).parameters())
        assert isinstance(param, DTensor)
        return tuple(param.device_mesh.mesh.shape), list(param.to_local().shape)

    assert placed() == ((4,), [1, 4])
    assert placed(process_group=within["within"].get_group()) == ((2,), [2, 4])
    assert placed(device_mesh=within["between"]) == ((2,), [2, 4])
    assert placed(device_mesh=within) == ((2,), [2, 4])
    assert placed(sharding_strategy=ShardingStrategy.NO_SHARD) == ((4, 1), [4, 4])
    pair = within["within"]
    assert placed(sharding_strategy=ShardingStrategy.NO_SHARD, device_mesh=pair) == ((2, 1), [4, 4])
    assert placed(sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=within) == ((2, 2), [2, 4])
    # The default shards over the devices of a node and replicates over the nodes.
    wrapped = {"auto_wrap_policy": ModuleWrapPolicy({nn.ReLU})}
    devices = mock.patch.object(torch.get_device_module(DEVICE), "device_count", return_value=1)
    with devices as count:
        assert placed(sharding_strategy=ShardingStrategy.HYBRID_SHARD, **wrapped) == ((4, 1), [4, 4])
        count.return_value = 2
        assert placed(sharding_strategy=ShardingStrategy.HYBRID_SHARD, **wrapped) == ((2, 2), [2, 4])
        count.return_value = 3
        with pytest.raises(ValueError, match="3 devices of a node"):
            placed(sharding_strategy=ShardingStrategy.HYBRID_SHARD, **wrapped)


def test_meshes(pool: Pool) -> None:
    pool.run(layouts, 4)


def synced(rank: int, world_size: int, how: str) -> tuple[Outcome, Outcome]:
    """Worker: ranks that start with other weights, made equal to rank 0's."""
    arguments: dict[str, Any] = {"sync_module_states": True}
    if how == "HYBRID_SHARD":
        arguments["device_mesh"] = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("between", "within"))
    case = Case(strategy=how, tied=True, arguments=arguments, double=True)
    # FSDP1 refuses to broadcast CPU tensors, though gloo can.
    with mock.patch.object(_init_utils, "_check_module_states_for_sync_module_states"):
        theirs = train_fsdp1(rank, case)
    return theirs, train_compat(rank, case)


@pytest.mark.parametrize(("how", "world_size"), [("FULL_SHARD", 2), ("NO_SHARD", 3), ("HYBRID_SHARD", 4)])
def test_states_are_synced_from_the_first_rank(pool: Pool, how: str, world_size: int) -> None:
    results = pool.run(synced, world_size, how)
    for theirs, ours in results:
        assert_same(theirs, ours, ROUNDING)
        assert ours.weights["norm.weight"].equal(results[0][1].weights["norm.weight"])


def explicitly_divided(rank: int, world_size: int, strategy: str) -> tuple[Outcome, Outcome]:
    """Worker: train as where the backend adds up instead of averaging, having asked this one what it does."""
    arguments: dict[str, Any] = {}
    if strategy == "HYBRID_SHARD":
        arguments["device_mesh"] = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("between", "within"))
    with mock.patch.object(reduction, "GLOO_AVERAGES", False):
        assert reduction.averages(init_device_mesh(DEVICE.type, (world_size,))) is GLOO_AVERAGES
    case = Case(strategy=strategy, arguments=arguments, double=True)
    with mock.patch("fsdp_compat.applying.apply.averages", return_value=False):
        ours = train_compat(rank, case)
    return train_fsdp1(rank, case), ours


@pytest.mark.parametrize(("strategy", "world_size"), [("FULL_SHARD", 2), ("NO_SHARD", 2), ("HYBRID_SHARD", 4)])
def test_gradients_are_averages_where_the_backend_sums(pool: Pool, strategy: str, world_size: int) -> None:
    for theirs, ours in pool.run(explicitly_divided, world_size, strategy):
        assert_same(theirs, ours, ROUNDING)


def named_by_device(rank: int, world_size: int) -> None:
    """Worker: a group whose backend is said per device, or not at all, has gloo on the CPU and has to be asked."""
    mesh = DeviceMesh.from_group(dist.new_group(backend="cpu:gloo"), "cpu")
    for answer in (False, True):
        with (
            mock.patch.object(reduction, "GLOO_AVERAGES", False),
            mock.patch.object(reduction, "HAS_FORCED_SUM", True),
            mock.patch.object(reduction, "_averages", return_value=answer),
        ):
            assert reduction.averages(mesh) is answer


def test_groups_that_name_no_backend_are_asked_too(pool: Pool) -> None:
    pool.run(named_by_device, 2)


def without_ignored_params(rank: int, world_size: int) -> tuple[Outcome, Outcome]:
    """Worker: ties across units as on a torch whose fully_shard cannot be told what to leave alone."""
    case = Case(policy="always", tied=True)
    with mock.patch.object(left_out, "HAS_IGNORED_PARAMS", False):
        ours = train_compat(rank, case)
    return train_compat(rank, case), ours


def test_parameters_are_kept_out_without_ignored_params(pool: Pool) -> None:
    for expected, ours in pool.run(without_ignored_params, 2):
        assert_same(expected, ours)


class Buffered(nn.Module):
    def __init__(self, start: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.register_buffer("flag", torch.tensor([bool(start)]))
        self.register_buffer("low", torch.full((3,), float(start), dtype=torch.bfloat16), persistent=False)
        self.register_buffer("scalar", torch.tensor(float(start), dtype=torch.float64))
        self.register_buffer("empty", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def synced_buffers(rank: int, world_size: int) -> None:
    torch.manual_seed(rank)
    module = Buffered(rank + 1 if rank else 0)
    module.inner[1].running_mean.fill_(rank)
    shard(module, device_id=DEVICE, sync_module_states=True, auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}))
    assert not module.flag.item()
    assert module.low.eq(0).all()
    assert module.scalar.item() == 0.0
    assert module.scalar.dtype == torch.float64
    assert module.inner[1].running_mean.eq(0).all()


def test_buffers_of_all_dtypes_are_synced(pool: Pool) -> None:
    pool.run(synced_buffers, ranks(2))


def on_meta(tied: bool) -> Model:
    with torch.device("meta"):
        return Model(tied=tied)


def reset_block(block: Block) -> None:
    nn.init.normal_(block.gain)


def from_meta(rank: int, world_size: int, how: str, policy: str, tied: bool) -> tuple[dict[str, torch.Tensor], ...]:
    """Worker: weights that FSDP1 and fsdp_compat give a model built on the meta device."""
    arguments: dict[str, Any] = {"auto_wrap_policy": POLICIES[policy](), "device_id": DEVICE, "use_orig_params": True}

    def init(module: nn.Module) -> None:
        module.to_empty(device=DEVICE, recurse=False)
        for param in module.parameters(recurse=False):
            nn.init.normal_(param)

    if how == "param_init_fn":
        arguments["param_init_fn"] = init
    with mock.patch.object(Block, "reset_parameters", reset_block, create=True):
        torch.manual_seed(3)
        with quiet_fsdp1():
            wrapped = FSDP1(on_meta(tied), **arguments)
        with FSDP1.summon_full_params(wrapped):
            theirs = weights_here(wrapped)
        torch.manual_seed(3)
        ours = weights_of(shard(on_meta(tied), **arguments))
    return theirs, ours


@pytest.mark.parametrize("policy", ["none", "transformer", "size", "always"])
@pytest.mark.parametrize("how", ["param_init_fn", "reset_parameters"])
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_meta_initialisation_draws_the_numbers_of_fsdp1(pool: Pool, how: str, policy: str, tied: bool) -> None:
    """A parameter that two modules share on the meta device becomes one for each."""
    for theirs, ours in pool.run(from_meta, ranks(2), how, policy, tied):
        assert theirs.keys() == ours.keys()
        for name, weight in theirs.items():
            assert torch.equal(weight, ours[name]), name


def partly_meta(rank: int, world_size: int) -> None:
    """Worker: what has values keeps them, and a module that cannot reset itself is named."""
    with mock.patch.object(Block, "reset_parameters", reset_block, create=True):
        model = shard(on_meta(True), device_id=DEVICE, auto_wrap_policy=ModuleWrapPolicy({nn.Embedding, Block}))
        assert_trains(model, rank)
        mixed = on_meta(False)
        mixed.norm = nn.LayerNorm(7)
        nn.init.constant_(mixed.norm.weight, 4.0)
        shard(mixed, device_id=DEVICE)
        assert mixed.norm.weight.to_local().eq(4.0).all()
    with pytest.raises(TypeError, match=r"Block has meta tensors but no reset_parameters"):
        shard(on_meta(False), device_id=DEVICE)


def assert_trains(model: nn.Module, rank: int) -> None:
    before = weights_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, rank, 0).backward()
    optimizer.step()
    after = weights_of(model)
    for name, weight in after.items():
        assert not torch.equal(weight, before[name]), name


def test_meta_initialisation_keeps_values(pool: Pool) -> None:
    pool.run(partly_meta, ranks(2))


def offloaded(rank: int, world_size: int) -> tuple[Outcome, Outcome]:
    """Worker: offloading changes where tensors lie, not what they hold.

    Where the optimizer moves from a GPU to the CPU with them, last digits change, as under FSDP1, which offloads there.
    """
    case = Case(accumulate=2, silent=True, max_norm=1e3)
    with_offload = Case(accumulate=2, silent=True, max_norm=1e3, arguments={"cpu_offload": CPUOffload(True)})
    expected = train_compat(rank, case) if KIND == "cpu" else train_fsdp1(rank, with_offload)
    return expected, train_compat(rank, with_offload)


def test_offload_changes_no_number(pool: Pool) -> None:
    for expected, ours in pool.run(offloaded, ranks(2)):
        assert_same(expected, ours)


@pytest.mark.parametrize(
    ("argument", "policy"),
    [
        (None, OffloadPolicy()),
        (CPUOffload(False), OffloadPolicy()),
        (CPUOffload(True), CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())),
        (CPUOffloadPolicy(pin_memory=False), CPUOffloadPolicy(pin_memory=False)),
    ],
)
def test_offload_policy(argument: Any, policy: OffloadPolicy) -> None:
    assert fsdp_compat.plan(nn.Linear(2, 2), cpu_offload=argument).units[0].kwargs["offload_policy"] == policy


class TiedAcrossUnits(nn.Module):
    """Two towers share one embedding, a third place of it is the head; none of them lies in the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleDict({"embed": nn.Embedding(13, 5), "block": Block(5, 7)})
        self.decoder = nn.Sequential(nn.Embedding(13, 5), Block(5, 7))
        self.head = nn.Linear(5, 13, bias=False)
        self.decoder[0].weight = self.encoder["embed"].weight
        self.head.weight = self.encoder["embed"].weight

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        x = self.encoder["block"](self.encoder["embed"](batch)) + self.decoder(batch)
        return self.head(x)


def tied_across_units(rank: int, world_size: int, classes: set[type[nn.Module]], strategy: str) -> None:
    """Worker: train against an unsharded model that sees every rank's data."""
    model, reference = TiedAcrossUnits(), TiedAcrossUnits().to(DEVICE)
    names = dict(model.named_parameters()).keys()
    shard(
        model,
        auto_wrap_policy=ModuleWrapPolicy(classes),
        device_id=DEVICE,
        sharding_strategy=ShardingStrategy[strategy],
    )
    assert dict(model.named_parameters()).keys() == names
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.3, momentum=0.5) for part in (model, reference)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        torch.testing.assert_close(loss, loss_of(reference, rank, step), rtol=1e-5, atol=1e-6)
        loss.backward()
        for other in range(world_size):
            (loss_of(reference, other, step) / world_size).backward()
        for optimizer in optimizers:
            optimizer.step()
        assert model.head.weight is model.encoder["embed"].weight is model.decoder[0].weight
    assert dict(model.named_parameters()).keys() == names
    assert list(model.state_dict()) == list(reference.state_dict())
    weights = weights_of(model)
    for name, weight in weights_here(reference).items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5)
    state = {name: param.detach() for name, param in reference.state_dict().items()}
    with fsdp_compat.summon_full_params(model):
        assert model.head.weight is model.encoder["embed"].weight
        model.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(model(tokens(rank, 9)), reference(tokens(rank, 9)))


@pytest.mark.parametrize(
    ("classes", "world_size", "strategy"),
    [
        ({nn.Embedding, nn.Linear}, 2, "FULL_SHARD"),
        ({nn.Embedding, nn.Sequential, Block}, 3, "FULL_SHARD"),
        ({nn.Sequential, nn.Linear}, 2, "SHARD_GRAD_OP"),
        ({nn.Embedding, nn.Linear}, 2, "NO_SHARD"),
    ],
)
def test_ties_across_units_train(pool: Pool, classes: set[type[nn.Module]], world_size: int, strategy: str) -> None:
    pool.run(tied_across_units, world_size, classes, strategy)


class OnlyInnerTies(nn.Module):
    """A parameter shared by two units alone: the unit around them has no place of its own for it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight
        self.embed, self.head = nn.Embedding(13, 5), nn.Linear(5, 13)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(self.embed(batch))))))


def tied_in_inner_units(rank: int, world_size: int) -> None:
    model, reference = OnlyInnerTies(), OnlyInnerTies().to(DEVICE)
    shard(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=DEVICE)
    assert list(model._parameters) == []
    for step in range(2):
        loss_of(model, rank, step).backward()
        assert list(model._parameters) == []
        for other in range(world_size):
            (loss_of(reference, other, step) / world_size).backward()
    assert isinstance(model.a.weight.grad, DTensor)
    torch.testing.assert_close(model.a.weight.grad.full_tensor(), reference.a.weight.grad, rtol=1e-5, atol=1e-7)
    assert list(model.state_dict()) == list(reference.state_dict())
    model.load_state_dict(model.state_dict())
    model.to(torch.float32)
    loss_of(model, rank, 3).backward()


def test_ties_of_inner_units_only(pool: Pool) -> None:
    pool.run(tied_in_inner_units, ranks(2))


def by_hand(rank: int, world_size: int) -> tuple[Outcome, Outcome]:
    """Worker: modules sharded one by one, inside out, some of them with fully_shard itself."""
    with quiet_fsdp1():
        theirs = train_fsdp1(rank, Case())
    model = build()
    model.blocks[0] = shard(model.blocks[0], device_id=DEVICE)
    model.blocks[1] = shard(model.blocks[1], device_id=DEVICE)
    fully_shard(model.blocks[2], mesh=init_device_mesh(DEVICE.type, (world_size,)))
    reduction.divide_explicitly(model.blocks[2])
    assert shard(model, device_id=DEVICE) is model
    assert shard(model, device_id=DEVICE) is model
    assert len(fsdp_compat.fsdp_modules(model)) == 4
    assert fsdp_compat.fsdp_modules(model, root_only=True) == [model]
    assert fsdp_compat.fsdp_modules(nn.ModuleList([model]), root_only=True) == [model]
    assert fsdp_compat.fsdp_modules(nn.Linear(1, 1)) == []
    with pytest.raises(ValueError, match="already have FSDP applied but found the module itself in"):
        shard(model, device_id=DEVICE, auto_wrap_policy=ModuleWrapPolicy({Block}))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, rank, 10 * step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return theirs, Outcome(losses, [], weights_of(model))


def test_sharding_by_hand_trains_as_by_policy(pool: Pool) -> None:
    for theirs, ours in pool.run(by_hand, ranks(2)):
        assert_same(theirs, ours)


def tied_to_a_sharded_module(rank: int, world_size: int) -> None:
    model = build(tied=True)
    shard(model.head, device_id=DEVICE)
    with pytest.raises(ValueError, match=r"embed\.weight is the same parameter as weight of a module"):
        shard(model, device_id=DEVICE)


def test_a_tie_to_a_module_sharded_before_is_refused(pool: Pool) -> None:
    pool.run(tied_to_a_sharded_module, ranks(2))


def with_ignored(rank: int, world_size: int, side: str, what: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Worker: train with a part left out; it keeps its own gradients on each rank."""
    model = build()
    arguments: dict[str, Any] = {
        "modules": {"ignored_modules": [model.blocks[1]]},
        "states": {"ignored_states": [model.blocks[1]]},
        "parameters": {"ignored_states": [model.blocks[1].up.weight, model.norm.bias]},
    }[what]
    ignored = [model.blocks[1].up.weight]
    arguments |= {"auto_wrap_policy": POLICIES["transformer"](), "device_id": DEVICE, "use_orig_params": True}
    with quiet_fsdp1():
        wrapped = FSDP1(model, **arguments) if side == "fsdp1" else shard(model, **arguments)
    assert model.blocks[1].up.weight is ignored[0]
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, foreach=False)
    losses = []
    for step in range(3):
        loss = loss_of(wrapped, rank, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {"up": ignored[0].detach().clone()}


@pytest.mark.parametrize("what", ["modules", "states", "parameters"])
def test_ignored_parts_stay_as_in_fsdp1(pool: Pool, what: str) -> None:
    results = zip(
        pool.run(with_ignored, ranks(2), "fsdp1", what), pool.run(with_ignored, ranks(2), "compat", what), strict=True
    )
    for theirs, ours in results:
        assert theirs[0] == ours[0]
        assert torch.equal(theirs[1]["up"], ours[1]["up"])


def transposed(rank: int, world_size: int) -> None:
    """Worker: parameters that are views with other strides, which fully_shard by itself refuses."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Conv2d(2, 2, 1).to(memory_format=torch.channels_last))
    model[0].weight = nn.Parameter(torch.arange(12.0).view(3, 4).T)
    shard(model, device_id=DEVICE)
    assert torch.equal(weights_of(model)["0.weight"], torch.arange(12.0).view(3, 4).T)


def test_parameters_of_any_strides(pool: Pool) -> None:
    pool.run(transposed, ranks(2))


def raises_before_sharding(rank: int, world_size: int) -> None:
    """Worker: every refusal leaves the module as it was."""
    mesh = init_device_mesh(DEVICE.type, (world_size,))
    group = dist.group.WORLD
    hybrid_shard = ShardingStrategy.HYBRID_SHARD
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"process_group": group, "device_mesh": mesh}, ValueError, "Cannot pass both process_group and device_mesh"),
        ({"ignored_modules": [], "ignored_states": []}, ValueError, "Cannot pass both ignored_modules and"),
        ({"ignored_states": [nn.Linear(1, 1), nn.Parameter(torch.ones(1))]}, ValueError, "Linear.*Parameter"),
        ({"ignored_modules": [nn.Parameter(torch.ones(1))]}, ValueError, "ignored_modules expects nn.Module list"),
        ({"sharding_strategy": hybrid_shard}, ValueError, "requires explicit specification of process group"),
        ({"sharding_strategy": hybrid_shard, "device_mesh": mesh}, ValueError, "to have ndim=2 but got 1"),
        ({"sharding_strategy": hybrid_shard, "process_group": group}, ValueError, r"Tuple\[dist.ProcessGroup, dist"),
        ({"process_group": (group, group)}, ValueError, "needs a hybrid strategy"),
    ]
    for arguments, error, message in cases:
        model = build()
        before = dict(model.named_parameters())
        with pytest.raises(error, match=message):
            shard(model, device_id=DEVICE, **arguments)
        assert all(param is before[name] for name, param in model.named_parameters())
    model = build()
    with pytest.raises(ValueError, match="ModuleList has no forward"):
        shard(model.blocks, device_id=DEVICE)


def test_refusals_touch_nothing(pool: Pool) -> None:
    pool.run(raises_before_sharding, ranks(2))


def test_arguments_without_effect_are_logged_once(pool: Pool) -> None:
    messages = pool.run(logged, 1)[0]
    assert [message.split("=")[0] for message in messages] == [
        "backward_prefetch",
        "limit_all_gathers",
        "use_orig_params",
    ]


def logged(rank: int, world_size: int) -> list[str]:
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    fsdp_compat.messages._logged.clear()
    logger = logging.getLogger("fsdp_compat")
    handler = Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for _ in range(2):
            shard(
                nn.Linear(2, 2),
                device_id=DEVICE,
                backward_prefetch=None,
                forward_prefetch=True,
                limit_all_gathers=False,
                use_orig_params=True,
            )
        shard(nn.Linear(2, 2), device_id=DEVICE)
    finally:
        logger.removeHandler(handler)
    return messages


def test_signature_is_that_of_fsdp1() -> None:
    import inspect

    theirs = {name: p for name, p in inspect.signature(FSDP1.__init__).parameters.items() if name != "self"}
    for function in (shard, fsdp_compat.plan):
        ours = dict(inspect.signature(function).parameters)
        added = [name for name, parameter in ours.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
        assert added in (["reshard_after_forward"], ["reshard_after_forward", "world_size"])
        for name in added:
            del ours[name]
        assert [(name, p.default) for name, p in ours.items()] == [(name, p.default) for name, p in theirs.items()]
