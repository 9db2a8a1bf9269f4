"""FSDP1's static methods for optimizer state: argument orders, optim_input, named optimizers, ranks that differ."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_compat import (
    FSDP,
    FullOptimStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    StateDictType,
)
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim import training
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES

FULL, SHARDED = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    decayed = [param for param in model.parameters() if param.dim() > 1]
    others = [param for param in model.parameters() if param.dim() <= 1]
    return [{"params": decayed, "weight_decay": 0.1, "lr": 0.02}, {"params": others, "weight_decay": 0.0}]


def trained(rank: int, group: dist.ProcessGroup | None = None) -> tuple[Any, torch.optim.Optimizer]:
    model = FSDP(build(), process_group=group, auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE)
    optimizer = torch.optim.AdamW(groups_of(model), lr=0.01)
    for step in range(2):
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def whole(states: dict[Any, Any]) -> dict[Any, dict[str, Any]]:
    """Every DTensor put together, wherever its shards are: those of a state may be on the CPU beside a GPU's mesh."""
    shards = {
        (name, key): value
        for name, state in states.items()
        for key, value in state.items()
        if isinstance(value, DTensor)
    }
    found = training.whole(shards)
    return {
        name: {key: found.get((name, key), value) for key, value in state.items()} for name, state in states.items()
    }


def assert_states(found: dict[Any, Any], expected: dict[Any, Any]) -> None:
    found, expected = whole(found), whole(expected)
    assert found.keys() == expected.keys()
    for name, state in expected.items():
        assert found[name].keys() == state.keys()
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[name][key].cpu(), value.cpu()), (name, key)
            else:
                assert found[name][key] == value


def argument_orders(rank: int, world_size: int) -> None:
    """Worker: every order of arguments that torch has had, and optim_input, lead to the same state."""
    model, optimizer = trained(rank)
    expected, numbered = FSDP.optim_state_dict(model, optimizer), optimizer.state_dict()
    logger, messages = logging.getLogger("fsdp_compat"), []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    for arguments in (
        (model, optimizer, expected),
        (expected, model, optimizer),
        (model, expected, optimizer),
    ):
        assert_states(FSDP.optim_state_dict_to_load(*arguments)["state"], numbered["state"])
    logger.removeHandler(handler)
    assert sum("torch 2.0's order" in message for message in messages) == 1
    with pytest.raises(TypeError, match="and an optimizer state, not Model, AdamW, int"):
        FSDP.optim_state_dict_to_load(model, optimizer, 1)
    with pytest.raises(ValueError, match="has no 'state' on this rank"):
        FSDP.optim_state_dict_to_load(model, optimizer, None)
    mine = expected if rank == 0 else None
    with FSDP.state_dict_type(model, FULL, None, FullOptimStateDictConfig(rank0_only=True)):
        for arguments in ((model, optimizer, mine), (mine, model, optimizer)):
            assert_states(FSDP.optim_state_dict_to_load(*arguments)["state"], numbered["state"])
    assert_states(FSDP.shard_full_optim_state_dict(expected, model, optimizer)["state"], numbered["state"])
    for inputs in (groups_of(model), iter(groups_of(model))):
        with pytest.warns(FutureWarning, match="`optim_input` argument is deprecated"):
            loadable = FSDP.shard_full_optim_state_dict(expected, model, inputs)
        assert_states(loadable["state"], numbered["state"])
        assert [group["params"] for group in loadable["param_groups"]] == [
            group["params"] for group in numbered["param_groups"]
        ]
    with pytest.warns(FutureWarning, match="`optim_input` argument is deprecated"):
        assert_states(
            FSDP.full_optim_state_dict(model, optimizer, groups_of(model), rank0_only=False)["state"],
            expected["state"],
        )
    with pytest.warns(FutureWarning, match="`optim_input` argument is deprecated"):
        scattered = FSDP.scatter_full_optim_state_dict(expected if rank == 0 else None, model, groups_of(model))
    assert_states(scattered["state"], numbered["state"])
    for wrong, error, message in (
        (model.norm.weight, TypeError, "iterable of Tensors or dicts, but got DTensor"),
        ([], ValueError, "should not be empty"),
        ([model.norm.weight, {"params": []}], TypeError, "not of both"),
    ):
        with pytest.warns(FutureWarning), pytest.raises(error, match=message):
            FSDP.full_optim_state_dict(model, optimizer, wrong)
    plain = torch.optim.Adam(model.parameters())
    loss_of(model, rank, 2).backward()
    plain.step()
    state = FSDP.full_optim_state_dict(model, plain, rank0_only=False)
    assert_states(FSDP.shard_full_optim_state_dict(state, model)["state"], plain.state_dict()["state"])


def given_states(rank: int, world_size: int) -> None:
    """Worker: a state passed by the caller, with values of its own and without groups, and what is no parameter's."""
    model, optimizer = trained(rank)
    given = optimizer.state_dict()
    given = {"state": {number: {**state, "note": 2.5, "none": None} for number, state in given["state"].items()}}
    given["state"]["tables"] = {"rows": torch.ones(2)}
    for config, kind in ((None, FULL), (ShardedOptimStateDictConfig(), SHARDED)):
        with FSDP.state_dict_type(model, kind, None, config):
            exported = FSDP.optim_state_dict(model, optimizer, given)
        assert exported.keys() == {"state"}
        assert exported["state"]["head.weight"]["note"] == 2.5
        assert exported["state"]["head.weight"]["none"] is None
        assert isinstance(exported["state"]["head.weight"]["exp_avg"], DTensor) is (kind is SHARDED)
        del exported["state"]["tables"]
        loadable = FSDP.optim_state_dict_to_load(model, optimizer, exported)
        assert loadable.keys() == {"state"}
        assert loadable["state"][0]["note"] == 2.5
        del given["state"]["tables"]
        assert_states(loadable["state"], given["state"])
        given["state"]["tables"] = {"rows": torch.ones(2)}
    alone = FSDP.optim_state_dict_to_load(model, optimizer, {"state": {"clock": 3}})
    assert alone == {"state": {"clock": 3}}
    numbers, names = OptimStateKeyType.PARAM_ID, OptimStateKeyType.PARAM_NAME
    expected = FSDP.optim_state_dict(model, optimizer)
    rekeyed = FSDP.rekey_optim_state_dict(expected, numbers, model, optim=optimizer)
    assert_states(rekeyed["state"], {**FSDP.rekey_optim_state_dict(rekeyed, numbers, model, optim=optimizer)["state"]})
    assert FSDP.rekey_optim_state_dict(expected, names, model, optim=optimizer) is expected
    reference = build()
    plain = torch.optim.AdamW(groups_of(reference), lr=0.01)
    plain.load_state_dict(FSDP.rekey_optim_state_dict(expected, numbers, reference, optim=plain))
    again = FSDP.rekey_optim_state_dict(plain.state_dict(), names, reference, optim=plain)
    assert_states(again["state"], expected["state"])
    with pytest.raises(ValueError, match="Invalid parameter keys"):
        FSDP.rekey_optim_state_dict({"state": {0: {}, "a": {}}, "param_groups": []}, names, reference, optim=plain)
    with pytest.raises(ValueError, match="has no parameter 'a'"):
        FSDP.rekey_optim_state_dict({"state": {"a": {}}, "param_groups": []}, numbers, reference, optim=plain)


def ranks_that_differ(rank: int, world_size: int) -> None:
    """Worker: another order on each rank works, another set of parameters is an error instead of a hang."""
    model, optimizer = trained(rank)
    expected = FSDP.optim_state_dict(model, optimizer)
    backwards = [{**group, "params": group["params"][::-1]} for group in groups_of(model)]
    other = torch.optim.AdamW(backwards if rank % 2 else groups_of(model), lr=0.01)
    other.load_state_dict(FSDP.optim_state_dict_to_load(model, other, expected))
    assert_states(FSDP.optim_state_dict(model, other)["state"], expected["state"])
    numbered: Any = other.state_dict()["state"]
    order = [list(expected["state"])[number] for number in sorted(numbered)] if rank == 0 else None
    for kind in (FULL, SHARDED):
        with FSDP.state_dict_type(model, kind):
            state = FSDP.optim_state_dict(model, other)["state"]
        entries: list[Any] = [None] * world_size
        dist.all_gather_object(entries, [(name, *values) for name, values in state.items()])
        assert entries == entries[:1] * world_size
        assert order is None or [name for name, *_ in entries[0]] == order
    first = FSDP.full_optim_state_dict(model, other)
    again = torch.optim.AdamW(groups_of(model) if rank % 2 else backwards, lr=0.5)
    again.load_state_dict(FSDP.scatter_full_optim_state_dict(first or None, model, optim=again))
    assert again.param_groups[0]["lr"] == 0.02
    assert_states(FSDP.optim_state_dict(model, again)["state"], expected["state"])
    fewer = torch.optim.AdamW([param for name, param in model.named_parameters() if rank == 0 or name != "norm.bias"])
    loss_of(model, rank, 2).backward()
    fewer.step()
    with pytest.raises(RuntimeError, match=r"some ranks are missing some of those states: rank .* none for norm\.bias"):
        FSDP.optim_state_dict(model, fewer)
    for state in optimizer.state.values():
        state["seen"] = rank
    with pytest.raises(RuntimeError, match=r"optimizer state seen of .* is 0 on rank 0 and 1 on rank 1"):
        FSDP.optim_state_dict(model, optimizer)
    with FSDP.state_dict_type(model, SHARDED):
        assert FSDP.optim_state_dict(model, optimizer)["state"]["norm.bias"]["seen"] == rank


def subgroups(rank: int, world_size: int) -> None:
    """Worker: rank 0 of a model's own processes keeps and sends the state, whatever its number in the world."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model, optimizer = trained(rank, groups[rank // 2])
    expected = FSDP.optim_state_dict(model, optimizer)
    with FSDP.state_dict_type(model, FULL, None, FullOptimStateDictConfig(rank0_only=True)):
        for group in (None, groups[rank // 2]):
            mine = FSDP.optim_state_dict(model, optimizer, group=group)
            assert bool(mine) is (rank % 2 == 0)
            loadable = FSDP.optim_state_dict_to_load(model, optimizer, mine, group=group)
            assert_states(loadable["state"], optimizer.state_dict()["state"])
    assert_states(expected["state"], FSDP.optim_state_dict(model, optimizer)["state"])


class Named(torch.optim.Adam):
    """An optimizer whose state dict has names where others have numbers, as TorchRec's."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        self.names = [name for name, _ in model.named_parameters()]
        super().__init__(model.parameters(), lr=lr)

    def state_dict(self) -> dict[str, Any]:
        return self._with_keys(super().state_dict(), dict(enumerate(self.names)))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(self._with_keys(state_dict, {name: key for key, name in enumerate(self.names)}))

    def _with_keys(self, state_dict: dict[str, Any], keys: dict[Any, Any]) -> dict[str, Any]:
        groups = [{**group, "params": [keys[key] for key in group["params"]]} for group in state_dict["param_groups"]]
        return {"state": {keys[key]: value for key, value in state_dict["state"].items()}, "param_groups": groups}


class Beside(nn.Module):
    """A sharded model beside parameters that only this rank has."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.sharded = FSDP(build(), device_id=DEVICE)
        self.register_module(f"table_{rank}", nn.Linear(3, 2).to(DEVICE))


def named(rank: int, world_size: int) -> None:
    """Worker: a named optimizer's state, and parameters that FSDP does not manage and other ranks do not have."""
    model = Beside(rank)
    optimizer = Named(model, lr=0.01)
    for step in range(2):
        (loss_of(model.sharded, rank, step) + model.get_submodule(f"table_{rank}").weight.square().sum()).backward()
        model.get_submodule(f"table_{rank}").bias.grad = torch.ones(2, device=DEVICE)
        optimizer.step()
    expected = FSDP.optim_state_dict(model, optimizer)
    assert {f"table_{rank}.weight", "sharded.head.weight"} <= expected["state"].keys()
    assert type(expected["state"]["sharded.head.weight"]["exp_avg"]) is torch.Tensor
    # What a group of sharded and ordinary parameters has to step with is nothing to save.
    assert expected["param_groups"][0]["foreach"] is None
    loadable = FSDP.optim_state_dict_to_load(model, optimizer, expected, is_named_optimizer=True)
    assert loadable["state"].keys() == expected["state"].keys()
    loss_of(model.sharded, rank, 2).backward()
    optimizer.step()
    optimizer.load_state_dict(loadable)
    found = FSDP.optim_state_dict(model, optimizer)["state"]
    for name, state in expected["state"].items():
        for key, value in state.items():
            assert torch.equal(found[name][key], value), (name, key)
    added = torch.optim.Adam(model.parameters(), lr=0.01)
    del expected["state"][f"table_{rank}.weight"]
    for group in expected["param_groups"]:
        group["params"] = [name for name in group["params"] if name != f"table_{rank}.weight"]
    without = FSDP.optim_state_dict_to_load(model, added, expected)
    assert len(without["param_groups"][0]["params"]) == len(added.param_groups[0]["params"]) - 1


KINDS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.Adagrad, {}),
    (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (torch.optim.NAdam, {}),
]


def kinds(rank: int, world_size: int) -> None:
    """Worker: the state of torch's optimizers, stepped or not, against an unsharded one that saw all ranks' data."""
    model = FSDP(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE)
    start = model.state_dict()
    for kind, keywords in KINDS:
        for foreach in (False, True):
            arguments = {"lr": 1e-3, "foreach": foreach, **keywords}
            model.load_state_dict(start)
            reference = build().to(DEVICE)
            ours, theirs = kind(model.parameters(), **arguments), kind(reference.parameters(), **arguments)
            for step in range(2):
                assert_near(FSDP.optim_state_dict(model, ours), theirs, reference)
                ours.zero_grad()
                theirs.zero_grad()
                loss_of(model, rank, step).backward()
                for part in range(world_size):
                    (loss_of(reference, part, step) / world_size).backward()
                ours.step()
                theirs.step()
            whole_state = FSDP.optim_state_dict(model, ours)
            assert_near(whole_state, theirs, reference)
            fresh = kind(model.parameters(), **{**arguments, "lr": 0.5})
            fresh.load_state_dict(FSDP.optim_state_dict_to_load(model, fresh, whole_state))
            assert_states(FSDP.optim_state_dict(model, fresh)["state"], whole_state["state"])
            assert fresh.param_groups[0]["lr"] == 1e-3
            loss_of(model, rank, 2).backward()
            fresh.step()


def assert_near(found: dict[str, Any], optimizer: torch.optim.Optimizer, reference: nn.Module) -> None:
    names = {param: name for name, param in reference.named_parameters()}
    expected = {names[param]: state for param, state in optimizer.state.items() if state}  # type: ignore[index]
    assert {name for name, state in found["state"].items() if state} == expected.keys()
    for name, state in expected.items():
        assert found["state"][name].keys() == state.keys()
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(found["state"][name][key], value.cpu(), rtol=1e-3, atol=1e-6)
            else:
                assert found["state"][name][key] == value


def statics(rank: int, world_size: int, check: str) -> None:
    {"orders": argument_orders, "given": given_states, "differ": ranks_that_differ, "named": named, "kinds": kinds}[
        check
    ](rank, world_size)


@pytest.mark.parametrize("check", ["orders", "given", "differ", "named", "kinds"])
def test_static_methods_for_optimizer_state(pool: Pool, check: str) -> None:
    pool.run(statics, 2, check)


def test_a_model_on_some_of_the_processes(pool: Pool) -> None:
    pool.run(subgroups, 4)
