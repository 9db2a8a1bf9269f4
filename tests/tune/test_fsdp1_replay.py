"""FSDP1's own schedule: collectives, their bytes and the most gathered bytes are those that runs under FSDP1 count."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils._python_dispatch import TorchDispatchMode

from fsdp_compat.preflight.present_layout import present_layout
from fsdp_compat.preflight.timeline import Timeline
from fsdp_migrate.tune.fsdp1_replay import fsdp1_replay
from fsdp_migrate.tune.present import present
from tests.pool import Pool
from tests.sampling import tiers
from tests.tune.models import MODELS, Block, Wide, batch, built, loss_of

#: What a program sets, as the plan has it and as FSDP1 has it; the last two on four ranks.
KINDS = (
    "full",
    "original parameters",
    "one unit",
    "grad op",
    "no prefetch",
    "prefetch after",
    "forward prefetch",
    "accumulated",
    "grad op accumulated",
    "accumulated, synchronised",
    "low",
    "replicated",
    "hybrid",
)
CASES = [
    (name, kind, ranks)
    for ranks in ("2", "3", "4")
    for name in MODELS
    for kind in KINDS
    # Its layers get inputs in the dtype of the last one's parameters, which is not that of gathered ones.
    if (ranks == "4" or kind != "hybrid") and (name, kind) != ("mlp", "low")
]


def units_of(name: str) -> set[type[nn.Module]]:
    return {nn.Linear} if name == "mlp" else {Block, Wide}


def wrapped(name: str, kind: str) -> Any:
    prefetch = {"no prefetch": None, "prefetch after": BackwardPrefetch.BACKWARD_POST}
    strategy = {"replicated": "NO_SHARD", "hybrid": "HYBRID_SHARD"}.get(kind, "FULL_SHARD")
    options: dict[str, Any] = {}
    if kind == "hybrid":
        options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    if kind == "low":
        options["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return FSDP1(
        built(name),
        auto_wrap_policy=ModuleWrapPolicy(units_of(name)) if kind != "one unit" else None,
        sharding_strategy=ShardingStrategy["SHARD_GRAD_OP" if "grad op" in kind else strategy],
        device_id=torch.device("cpu"),
        # Without it, a flat parameter is trained or frozen as a whole.
        use_orig_params=kind == "original parameters" or name in ("frozen", "wide residual"),
        backward_prefetch=prefetch.get(kind, BackwardPrefetch.BACKWARD_PRE),
        forward_prefetch=kind == "forward prefetch",
        **options,
    )


class Whole(TorchDispatchMode):
    """Collectives of FSDP1 and their bytes, and the most bytes of its whole flat parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.moved: dict[str, int] = {}
        self.gathered = 0
        self._flats = [
            handle.flat_param
            for handle in {m._handle: 0 for m in model.modules() if isinstance(m, FSDP1) and m._handle}
        ]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for kind, part in (("gather", "allgather"), ("scatter", "reduce_scatter"), ("reduction", "allreduce")):
            if str(func).startswith("c10d.") and part in str(func):
                self.counts[kind] = self.counts.get(kind, 0) + 1
                self.moved[kind] = self.moved.get(kind, 0) + max(map(_nbytes, args[:2]))
        whole = [getattr(flat, "_full_param_padded", None) for flat in self._flats]
        held = sum(each.untyped_storage().nbytes() for each in whole if each is not None)
        self.gathered = max(self.gathered, held)
        return result


def _nbytes(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value))
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def counted(rank: int, world_size: int, name: str, kind: str) -> tuple[Any, ...]:
    """What the first step of a run is recorded as, and what its last one issues and holds."""
    model = wrapped(name, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    turns = 3 if "accumulated" in kind else 1
    timeline = Timeline(model)
    for step in range(3):
        with timeline if not step else Whole(model) as counts:
            for turn in range(turns):
                silent = "synchronised" not in kind and turn < turns - 1
                with model.no_sync() if silent else contextlib.nullcontext():
                    loss_of(model, batch(rank, step)).backward()
        if not step:
            values = {**timeline.as_dict(), "layout": present_layout(model, timeline.modules), "device": "cpu"}
        optimizer.step()
        optimizer.zero_grad()
    return values, (counts.counts, counts.moved, counts.gathered)


@pytest.mark.parametrize("case", tiers(CASES, 11, 5), ids=" ".join)
def test_a_run_under_fsdp1_counts_what_its_schedule_says(pool: Pool, case: tuple[str, str, str]) -> None:
    name, kind, ranks = case
    for values, found in pool.run(counted, int(ranks), name, kind):
        assert found == said(values, kind)


def said(values: dict[str, Any], kind: str) -> tuple[Any, ...]:
    plan = present(values)
    assert plan.fsdp1 is not None
    layout = replace(plan.layout, synchronise_last="synchronised" not in kind)
    books = fsdp1_replay(plan.fsdp1[0], layout, plan.fsdp1[1])
    return dict(books.counts), dict(books.moved), books.peaks["gathered"]
