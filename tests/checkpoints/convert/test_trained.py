"""Training goes on from a converted checkpoint under FSDP2 as it would have without a stop: the same bits."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.judge.loading import line
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from tests.checkpoints import fsdp2
from tests.checkpoints.convert.converting import converted
from tests.checkpoints.written import flattened
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.ordered import sums_in_rank_order
from tests.pool import Pool

#: What trained before the checkpoint was saved, and the two steps after it: losses of each rank, and all state.
Trained = tuple[list[list[float]], dict[tuple[Any, ...], Any]]

TWO = {
    "full_orig.pt": "fsdp1",
    "full_flat.pt": "fsdp1_flat",
    "sharded_orig": "fsdp1",
    "sharded_orig_dcp": "fsdp1",
    "sharded_flat": "fsdp1_flat",
    "mesh": "fsdp1",
    "by_rank_dcp": "fsdp1",
    "lightning": "fsdp1",
    "ep0-ba2": "fsdp1",
    "fsdp2": "fsdp2",
    "fsdp2_dcp": "fsdp2",
}
FOUR = {
    "sharded_orig": "fsdp1",
    "sharded_orig_dcp": "fsdp1",
    "hybrid": "fsdp1_hybrid",
    "hybrid_mesh": "fsdp1_hybrid",
    "fsdp2_hybrid": "fsdp2_hybrid",
}
CASES = [(2, name) for name in TWO] + [(4, name) for name in FOUR]


def _never_stopped(rank: int, world_size: int, how: str) -> tuple[list[float], Any]:
    """Two steps, as the fixtures train them, and two more; the losses of these, and the state after them."""
    with _quiet():
        model, optimizer = (_fsdp1 if how.startswith("fsdp1") else _fsdp2)(rank, world_size, how)
        return _two_more_steps(rank, model, optimizer), _whole(model, optimizer)


def _loaded(rank: int, world_size: int, lines: list[str], hybrid: bool) -> tuple[list[float], Any]:
    """As :func:`_never_stopped`, with a fresh FSDP2 model that has loaded what the first two steps left."""
    with _quiet():
        model, optimizer = fsdp2.fresh(_mesh(world_size, hybrid))
        for code in lines:
            fsdp2.load(code, model, optimizer)
        return _two_more_steps(rank, model, optimizer), _whole(model, optimizer)


def _two_more_steps(rank: int, model: Any, optimizer: Any) -> list[float]:
    from fixtures.checkpoints.model import train

    with sums_in_rank_order():
        return train(model, optimizer, rank, first=2)


def _fsdp1(rank: int, world_size: int, how: str) -> tuple[Any, Any]:
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    from fixtures.checkpoints.model import Block, build, optimizer_for, train

    arguments: dict[str, Any] = {"use_orig_params": how != "fsdp1_flat", "device_id": torch.device("cpu")}
    if how == "fsdp1_hybrid":
        shards = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
        arguments |= {"process_group": (shards, replicas), "sharding_strategy": ShardingStrategy.HYBRID_SHARD}
    model = FSDP(build(), auto_wrap_policy=ModuleWrapPolicy({Block}), **arguments)
    optimizer = optimizer_for(model)
    train(model, optimizer, rank)
    return model, optimizer


def _fsdp2(rank: int, world_size: int, how: str) -> tuple[Any, Any]:
    from torch.distributed.fsdp import fully_shard

    from fixtures.checkpoints.model import build, optimizer_for, train

    model = build()
    mesh = _mesh(world_size, how == "fsdp2_hybrid")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = optimizer_for(model)
    train(model, optimizer, rank)
    return model, optimizer


def _mesh(world_size: int, hybrid: bool) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    if hybrid:
        return init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cpu", (world_size,))


def _whole(model: Any, optimizer: Any) -> dict[tuple[Any, ...], Any]:
    """All values, with the names of parameters in groups in no order, and lists and tuples alike."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType

    if isinstance(model, FSDP):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            whole = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
    else:
        whole = fsdp2.gathered(model, optimizer)
    for group in whole["optim"]["param_groups"]:
        group["params"] = sorted(group["params"])
    return {key: value.detach().clone() if torch.is_tensor(value) else value for key, value in flattened(whole)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    torch.set_num_threads(1)
    with warnings.catch_warnings(), fsdp1_on_cpu():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def never_stopped(pool: Pool) -> Callable[[int, str], Trained]:
    """Each kind of run, once."""
    known: dict[tuple[int, str], Trained] = {}

    def run(ranks: int, how: str) -> Trained:
        if (ranks, how) not in known:
            known[ranks, how] = _together(pool.run(_never_stopped, ranks, how))
        return known[ranks, how]

    return run


def _together(of_ranks: list[tuple[list[float], Any]]) -> Trained:
    return [losses for losses, _ in of_ranks], of_ranks[0][1]


def _lines(source: Path, target: Path, to: Target) -> list[str]:
    """The code that loads what ``source`` was converted to; safetensors have the model alone."""
    model = converted(source, target / "model", to)
    if to is not Target.SAFETENSORS:
        return [model.line]
    root = "state.model" if source.name == "ep0-ba2" else "model"
    return [model.line, converted(source, target / "optimizer", Target.FULL, leave_out=(root,)).line]


@pytest.mark.parametrize("to", list(Target))
@pytest.mark.parametrize(("ranks", "name"), CASES)
def test_as_if_it_had_never_stopped(
    ranks: int,
    name: str,
    to: Target,
    request: pytest.FixtureRequest,
    never_stopped: Callable[[int, str], Trained],
    pool: Pool,
    tmp_path: Path,
) -> None:
    root: Path = request.getfixturevalue("two_ranks" if ranks == 2 else "four_ranks")
    how = (TWO if ranks == 2 else FOUR)[name]
    losses, wanted = never_stopped(ranks, how)
    lines = _lines(root / name, tmp_path, to)
    held_losses, held = _together(pool.run(_loaded, ranks, lines, how.endswith("hybrid")))
    assert held_losses == losses
    _assert_same(held, wanted)


@pytest.mark.parametrize("name", ["full_orig.pt", "full_flat.pt", "sharded_orig_dcp", "mesh", "fsdp2_dcp"])
def test_the_lines_that_inspect_prints_train_on(
    name: str, two_ranks: Path, never_stopped: Callable[[int, str], Trained], pool: Pool
) -> None:
    losses, wanted = never_stopped(2, TWO[name])
    (found,) = open_all(two_ranks / name)
    held_losses, held = _together(pool.run(_loaded, 2, [line(found)], False))
    assert held_losses == losses
    _assert_same(held, wanted)


def _assert_same(held: dict[tuple[Any, ...], Any], wanted: dict[tuple[Any, ...], Any]) -> None:
    assert held.keys() == wanted.keys()
    assert sum(map(torch.is_tensor, held.values())) == 37
    for key, value in wanted.items():
        if torch.is_tensor(value):
            assert torch.equal(held[key], value), key
        else:
            assert held[key] == value, key
