"""Optimizer state in FSDP1's shape, and optimizers that were built at the wrong moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from fsdp_compat import ShardingStrategy, optim_state_dict, optim_state_dict_to_load, relink_optimizer, shard
from tests.device import DEVICE, KIND
from tests.pool import Pool
from tests.shim.models import Model, build, loss_of, tokens
from tests.shim.training import POLICIES, weights_here, weights_of


def sharded(model: Model | None = None, **keywords: Any) -> Model:
    model = build() if model is None else model
    return shard(model, **{"auto_wrap_policy": POLICIES["transformer"](), "device_id": DEVICE, **keywords})


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups, so that what belongs to which can be mixed up."""
    decayed = [param for param in model.parameters() if param.dim() > 1]
    others = [param for param in model.parameters() if param.dim() <= 1]
    return [{"params": decayed, "weight_decay": 0.1, "lr": 0.02}, {"params": others, "weight_decay": 0.0}]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups_of(model), lr=0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: list[int], number: int) -> None:
    optimizer.zero_grad()
    for rank in ranks:
        (loss_of(model, rank, number) / len(ranks)).backward()
    optimizer.step()


def oracle(world_size: int, steps: int) -> tuple[Model, torch.optim.Optimizer]:
    """An unsharded model and optimizer that saw every rank's data."""
    model = build()
    optimizer = adam(model)
    for number in range(steps):
        step(model, optimizer, list(range(world_size)), number)
    return model, optimizer


def exported(rank: int, world_size: int, strategy: str) -> None:
    """Worker: names, values, groups, devices and ranks of the state, against the unsharded optimizer."""
    arguments: dict[str, Any] = {"sharding_strategy": ShardingStrategy[strategy]}
    if strategy == "HYBRID_SHARD":
        arguments["device_mesh"] = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("a", "b"))
    model = sharded(**arguments)
    optimizer = adam(model)
    assert optim_state_dict(model, optimizer)["state"] == {}
    assert optimizer.state == {}
    for number in range(2):
        step(model, optimizer, [rank], number)
    with torch.no_grad():
        model(tokens(rank, 7))
    reference, reference_optimizer = oracle(world_size, 2)
    state = optim_state_dict(model, optimizer)
    names = [name for name, param in reference.named_parameters() if param.dim() > 1]
    others = [name for name, param in reference.named_parameters() if param.dim() <= 1]
    assert [group["params"] for group in state["param_groups"]] == [names, others]
    assert [group["lr"] for group in state["param_groups"]] == [0.02, 0.01]
    assert list(state["state"]) == [*names, *others]
    for name, param in reference.named_parameters():
        expected = reference_optimizer.state[param]
        assert state["state"][name].keys() == expected.keys()
        for key, value in expected.items():
            assert type(state["state"][name][key]) is torch.Tensor
            torch.testing.assert_close(state["state"][name][key].cpu(), value.cpu(), rtol=1e-4, atol=1e-6)
    before = state["state"]["head.weight"]["exp_avg"].clone()
    step(model, optimizer, [rank], 3)
    # What is not sharded is saved as it is, unless it has to go to the CPU: under FSDP1 too.
    is_shared = strategy == "NO_SHARD" and KIND == "cpu"
    assert torch.equal(before, state["state"]["head.weight"]["exp_avg"]) is not is_shared
    shards = optim_state_dict(model, optimizer, full=False)
    mine, theirs = shards["state"]["head.weight"]["exp_avg"], optimizer.state[model.head.weight]["exp_avg"]
    assert torch.equal(mine.to_local().cpu(), theirs.to_local().cpu())
    assert mine.to_local().numel() == 0 or mine.to_local().data_ptr() != theirs.to_local().data_ptr()
    on_first = optim_state_dict(model, optimizer, rank0_only=True)
    assert bool(on_first) is (rank == 0)
    with pytest.raises(ValueError, match="rank0_only=True needs full=True"):
        optim_state_dict(model, optimizer, full=False, rank0_only=True)


@pytest.mark.parametrize(
    ("strategy", "world_size"), [("FULL_SHARD", 2), ("SHARD_GRAD_OP", 3), ("NO_SHARD", 2), ("HYBRID_SHARD", 4)]
)
def test_state_is_that_of_an_unsharded_optimizer(pool: Pool, strategy: str, world_size: int) -> None:
    pool.run(exported, world_size, strategy)


def resumed(rank: int, world_size: int, full: bool) -> None:
    """Worker: training on from a loaded state gives what training on without interruption gives."""
    model = sharded()
    optimizer = adam(model)
    for number in range(2):
        step(model, optimizer, [rank], number)
    optimizer.param_groups[0]["lr"] = 0.5
    saved = optim_state_dict(model, optimizer, full=full)
    weights = weights_of(model)
    again = build(seed=4)
    again.load_state_dict(weights)
    again = sharded(again)
    loaded = adam(again)
    loaded.load_state_dict(optim_state_dict_to_load(again, loaded, saved))
    assert loaded.param_groups[0]["lr"] == 0.5
    for one, other in ((model, optimizer), (again, loaded)):
        step(one, other, [rank], 2)
    assert all(isinstance(state["exp_avg"], DTensor) for state in loaded.state.values())
    ours = weights_of(again)
    for name, weight in weights_of(model).items():
        assert torch.equal(weight, ours[name]), name


@pytest.mark.parametrize(("full", "world_size"), [(True, 2), (False, 2), (True, 3)])
def test_training_goes_on_from_a_loaded_state(pool: Pool, full: bool, world_size: int) -> None:
    pool.run(resumed, world_size, full)


def from_another_layout(rank: int, world_size: int) -> None:
    """Worker: shards of a hybrid mesh are loaded into a flat one."""
    hybrid = sharded(
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_mesh=init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("a", "b")),
    )
    optimizer = adam(hybrid)
    step(hybrid, optimizer, [rank], 0)
    whole = optim_state_dict(hybrid, optimizer)
    flat = sharded()
    loaded = adam(flat)
    loaded.load_state_dict(optim_state_dict_to_load(flat, loaded, optim_state_dict(hybrid, optimizer, full=False)))
    again = optim_state_dict(flat, loaded)
    for name, state in whole["state"].items():
        for key, value in state.items():
            assert torch.equal(value, again["state"][name][key])


def test_shards_of_another_mesh_are_loaded(pool: Pool) -> None:
    pool.run(from_another_layout, 4)


def drop_state(state: dict[str, Any]) -> dict[str, Any]:
    return {}


def rename(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "state": {"other.weight": state["state"]["head.weight"]}}


def merge_groups(state: dict[str, Any]) -> dict[str, Any]:
    names = [name for group in state["param_groups"] for name in group["params"]]
    return {**state, "param_groups": [{**state["param_groups"][0], "params": names}]}


def number_groups(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "param_groups": [{**group, "params": [0]} for group in state["param_groups"]]}


def transpose(state: dict[str, Any]) -> dict[str, Any]:
    head = state["state"]["head.weight"]
    return {**state, "state": {**state["state"], "head.weight": {**head, "exp_avg": head["exp_avg"].T}}}


def unloadable(rank: int, world_size: int, damage: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    model = sharded()
    optimizer = adam(model)
    step(model, optimizer, [rank], 0)
    state = damage(optim_state_dict(model, optimizer))
    try:
        optim_state_dict_to_load(model, optimizer, state)
    except (ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_state, "ValueError: optim_state_dict has no 'state' on this rank"),
        (rename, "ValueError: optim_state_dict has state for other.weight"),
        (merge_groups, "ValueError: no group in optim_state_dict has the parameters of the optimizer's group 0"),
        (number_groups, "NotImplementedError: optim_state_dict is keyed by number"),
        (transpose, "ValueError: exp_avg of head.weight has shape (7, 13)"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(pool: Pool, damage: Callable[..., Any], message: str) -> None:
    for answer in pool.run(unloadable, 2, damage):
        assert answer.startswith(message)


def built_first(rank: int, world_size: int, kind: str) -> None:
    """Worker: an optimizer with state, built before sharding: refused as it is, right once relinked."""
    make = torch.optim.Adagrad if kind == "Adagrad" else torch.optim.AdamW
    model, reference = build(), build()
    ours, theirs = (make(groups_of(part), lr=0.01) for part in (model, reference))
    for optimizer, part in ((ours, model), (theirs, reference)):
        step(part, optimizer, list(range(world_size)), 0)
    sharded(model)
    loss_of(model, rank, 1).backward()
    with pytest.raises(RuntimeError, match=r"built before the model was sharded .*embed\.weight.* and \d+ more"):
        ours.step()
    relink_optimizer(ours, model)
    assert [len(group["params"]) for group in ours.param_groups] == [
        len(group["params"]) for group in theirs.param_groups
    ]
    ours.step()
    step(reference, theirs, list(range(world_size)), 1)
    held = {param for group in ours.param_groups for param in group["params"]}
    assert held == set(model.parameters())
    assert set(ours.state) == held
    weights = weights_of(model)
    for name, weight in weights_here(reference).items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5)
    relink_optimizer(ours, model)
    assert {param for group in ours.param_groups for param in group["params"]} == held


@pytest.mark.parametrize("kind", ["AdamW", "Adagrad"])
def test_an_optimizer_built_first_is_refused_or_relinked(pool: Pool, kind: str) -> None:
    pool.run(built_first, 2, kind)


def built_late(rank: int, world_size: int, nested: bool) -> None:
    """Worker: an optimizer built between a forward and its backward, while the model registers gathered parameters."""
    policy = POLICIES["transformer" if nested else "none"]()
    model = sharded(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True, auto_wrap_policy=policy)
    model(tokens(rank, 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, rank, 0).backward()
    with pytest.raises(RuntimeError, match=r"has gathered copies of parameters \(embed\.weight, "):
        optimizer.step()
    relink_optimizer(optimizer, model)
    before = weights_of(model)
    optimizer.step()
    assert not any(torch.equal(weight, before[name]) for name, weight in weights_of(model).items())


@pytest.mark.parametrize("nested", [False, True])
def test_an_optimizer_built_of_gathered_parameters_is_refused_or_relinked(pool: Pool, nested: bool) -> None:
    pool.run(built_late, 2, nested)


def of_others(rank: int, world_size: int) -> None:
    """Worker: optimizers of other models are neither refused at their step nor relinked to this one."""
    model, other = sharded(), build(seed=2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    loss_of(other, rank, 0).backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"parameter 0 of the optimizer's group 0 .* never belonged to this Model"):
        relink_optimizer(optimizer, model)
    with pytest.raises(ValueError, match=r"is not in this Model"):
        optim_state_dict(model, optimizer)
    mixed = torch.optim.SGD(other.parameters(), lr=0.1)
    mixed.step()
    sharded(other)
    with pytest.raises(RuntimeError, match="built before the model was sharded"):
        mixed.step()


def test_optimizers_of_other_models(pool: Pool) -> None:
    pool.run(of_others, 2)


def test_relinking_no_optimizer_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"takes an optimizer and got NoneType\. Call it after the line that builds"):
        relink_optimizer(None, nn.Linear(2, 2))  # type: ignore[arg-type]
