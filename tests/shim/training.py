"""Train the same model under real FSDP1 and under fsdp_compat, and say what came out."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.tensor import DTensor

import fsdp_compat
from tests.device import DEVICE
from tests.shim.models import Block, build, loss_of


def some_size(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    return fsdp_compat.size_based_auto_wrap_policy(module, recurse, nonwrapped_numel, min_num_params=150)


def linears_alone(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.out_features == 11


def per_unit(module: nn.Module) -> bool | dict[str, Any]:
    if isinstance(module, Block):
        return {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
    return isinstance(module, nn.Linear) and module.out_features == 11


POLICIES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "transformer": lambda: functools.partial(fsdp_compat.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    "size": lambda: some_size,
    "lambda": lambda: functools.partial(fsdp_compat.lambda_auto_wrap_policy, lambda_fn=linears_alone),
    "always": lambda: fsdp_compat.always_wrap_policy,
    "module": lambda: fsdp_compat.ModuleWrapPolicy({Block, nn.Embedding}),
    "custom": lambda: fsdp_compat.CustomPolicy(per_unit),
}


@dataclass(frozen=True)
class Case:
    """One way to train. ``accumulate`` micro-batches per step, all but the last under ``no_sync`` if ``silent``.

    ``even`` sizes can be divided by the number of ranks. A ``meta`` model is drawn when it is sharded. With
    ``own_seeds`` each rank builds other weights.
    """

    policy: str = "transformer"
    strategy: str = "FULL_SHARD"
    tied: bool = False
    accumulate: int = 1
    silent: bool = False
    max_norm: float | None = None
    use_orig_params: bool = True
    steps: int = 3
    double: bool = False
    even: bool = False
    meta: bool = False
    own_seeds: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    def keywords(self) -> dict[str, Any]:
        return {
            "auto_wrap_policy": POLICIES[self.policy](),
            "sharding_strategy": ShardingStrategy[self.strategy],
            "device_id": DEVICE,
            "use_orig_params": self.use_orig_params,
            "param_init_fn": _draw if self.meta else None,
            **self.arguments,
        }


@dataclass(frozen=True)
class Outcome:
    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]


def train_fsdp1(rank: int, case: Case) -> Outcome:
    with quiet_fsdp1():
        model = FSDP1(_initial(rank, case), **case.keywords())
        losses, norms = _train(model, rank, case, model.no_sync, model.clip_grad_norm_)
        with FSDP1.summon_full_params(model):
            weights = weights_here(model)
    return Outcome(losses, norms, weights)


def train_compat(rank: int, case: Case) -> Outcome:
    model = _initial(rank, case)
    sharded = fsdp_compat.shard(model, **case.keywords())
    assert sharded is model
    losses, norms = _train(
        model,
        rank,
        case,
        functools.partial(fsdp_compat.no_sync, model),
        functools.partial(fsdp_compat.clip_grad_norm_, model),
    )
    return Outcome(losses, norms, weights_of(model))


def _initial(rank: int, case: Case) -> nn.Module:
    seed = rank if case.own_seeds or case.arguments.get("sync_module_states") else 0
    sizes = {"vocabulary": 16, "width": 8} if case.even else {}
    with torch.device("meta") if case.meta else contextlib.nullcontext():
        model = build(seed, tied=case.tied, **sizes)
    return model.double() if case.double else model


def _draw(module: nn.Module) -> None:
    """For ``param_init_fn``: which numbers a module gets depends on those that were drawn before it."""
    module.to_empty(device=DEVICE, recurse=False)
    with torch.no_grad():
        for param in module.parameters(recurse=False):
            param.uniform_(-0.5, 0.5)


def _train(
    model: nn.Module, rank: int, case: Case, no_sync: Callable[[], Any], clip: Callable[[float], torch.Tensor]
) -> tuple[list[float], list[float]]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses, norms = [], []
    for step in range(case.steps):
        optimizer.zero_grad()
        for micro in range(case.accumulate):
            silent = case.silent and micro < case.accumulate - 1
            with no_sync() if silent else contextlib.nullcontext():
                loss = loss_of(model, rank, 10 * step + micro)
                loss.backward()
                losses.append(loss.item())
        if case.max_norm is not None:
            norm = clip(case.max_norm)
            assert type(norm) is torch.Tensor
            norms.append(norm.item())
        optimizer.step()
    return losses, norms


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters, whole, put together from what each rank holds; one collective, however many they are."""
    return whole(dict(model.named_parameters()))


def weights_here(model: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters as this rank has them, on the CPU: of an unsharded model, or inside ``summon_full_params``."""
    return {clean(name): param.detach().cpu().clone() for name, param in model.named_parameters()}


def over_ranks(value: float) -> float:
    """The sum of what each rank has. A collective."""
    total = torch.tensor(value, dtype=torch.float64, device=DEVICE)
    dist.all_reduce(total)
    return total.item()


def whole(tensors: dict[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
    """The whole of each tensor, on the CPU, from what each rank holds. Does not use DTensor's own gathering."""
    local = {name: tensor.to_local() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()}
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, {name: tensor.detach().cpu().clone() for name, tensor in local.items()})
    found = {}
    for name, tensor in tensors.items():
        ranks = _ranks_with_parts(tensor) if isinstance(tensor, DTensor) else [dist.get_rank()]
        found[name] = torch.cat([parts[rank][name] for rank in ranks]) if tensor.dim() else parts[ranks[0]][name]
    return found


def _ranks_with_parts(tensor: DTensor) -> list[int]:
    rows = tensor.device_mesh.mesh.view(-1, tensor.device_mesh.size(-1)).tolist()
    return next(row for row in rows if dist.get_rank() in row)


def clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")


@contextlib.contextmanager
def quiet_fsdp1() -> Iterator[None]:
    """FSDP1 warns about itself; those warnings are not what is under test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def assert_same(first: Outcome, second: Outcome, rounding: float = 0.0) -> None:
    """Equal losses and weights, up to ``rounding``; norms to 1e-6 relative: the two sum squares in another order."""
    torch.testing.assert_close(_float64(first.losses), _float64(second.losses), rtol=0, atol=rounding)
    assert first.weights.keys() == second.weights.keys()
    different = [name for name, weight in first.weights.items() if not weight.equal(second.weights[name])]
    for name, weight in first.weights.items():
        torch.testing.assert_close(
            weight, second.weights[name], rtol=0, atol=rounding, msg=lambda m, n=name: f"{n} of {different}: {m}"
        )
    torch.testing.assert_close(_float64(first.norms), _float64(second.norms), rtol=1e-6, atol=0)


def _float64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def both(rank: int, world_size: int, case: Case) -> tuple[Outcome, Outcome]:
    """Worker: what FSDP1 and fsdp_compat make of ``case``."""
    return train_fsdp1(rank, case), train_compat(rank, case)
