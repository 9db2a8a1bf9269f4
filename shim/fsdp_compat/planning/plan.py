"""A plan: what will be sharded and how, unit by unit, and its table.

The table has one line per unit, then on what the bytes rest, and where the units differ from FSDP1's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from fsdp_compat.planning.mixed_precision import Precision
from fsdp_compat.planning.options import KEEP_AFTER_FORWARD, Options
from fsdp_compat.planning.ownership import Tie
from fsdp_compat.planning.sizes import UnitBytes
from fsdp_compat.tables import readable, table
from fsdp_compat.torch_.versions import HAS_AUTO_RESHARD
from fsdp_compat.units import Place
from fsdp_compat.vocabulary import CPUOffload

_ARGUMENTS = ("reshard_after_forward", "mp_policy", "offload_policy")
_HEAD = ("unit", "class", "elements", "parameters", "per rank", "gathered", "strategy", *_ARGUMENTS)


@dataclass(frozen=True, eq=False)
class Unit:
    """One future call of ``fully_shard``. ``numel`` counts the elements it manages, before sharding.

    ``size`` is what they weigh, see :class:`fsdp_compat.UnitBytes`.
    """

    fqn: str
    module: nn.Module
    options: Options
    precision: Precision | None
    is_root: bool
    places: tuple[Place, ...]
    numel: int
    size: UnitBytes

    @cached_property
    def kwargs(self) -> dict[str, Any]:
        """What ``fully_shard`` is called with, besides ``mesh`` and ``ignored_params``."""
        kwargs: dict[str, Any] = {
            "reshard_after_forward": _reshard_after_forward(self.options),
            "offload_policy": _offload_policy(self.options.cpu_offload),
        }
        if self.precision is not None:
            kwargs["mp_policy"] = self.precision.unit_policy(is_root=self.is_root, has_parameters=bool(self.places))
        return kwargs

    @property
    def casts_as_root(self) -> bool:
        """Whether it casts its inputs if no forward of the units around it has begun before."""
        return self.precision is not None and self.precision.cast_root_inputs


@dataclass(frozen=True, eq=False)
class Plan:
    """What :func:`fsdp_compat.shard` does to ``root``: ``units`` in the order they are applied, the root last.

    ``ties`` are the parameters that several units would share; ``full_precision`` are the modules kept in fp32;
    ``notes`` says, one sentence each, where the units differ from FSDP1's. ``str(plan)`` is a table.
    """

    root: nn.Module
    units: tuple[Unit, ...]
    ties: tuple[Tie, ...]
    ignored: tuple[Place, ...]
    ignored_modules: frozenset[nn.Module]
    full_precision: tuple[nn.Module, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return _table(self)


def _reshard_after_forward(options: Options) -> int | None:
    if options.reshard_after_forward is not None:
        return options.reshard_after_forward
    if options.strategy in KEEP_AFTER_FORWARD:
        return False
    return None if HAS_AUTO_RESHARD else True


def _offload_policy(value: CPUOffload | OffloadPolicy | None) -> OffloadPolicy:
    if isinstance(value, OffloadPolicy):
        return value
    if value is None or not value.offload_params:
        return OffloadPolicy()
    # Pinned memory exists for an accelerator's copies; without one torch refuses to allocate it.
    return CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())


def _table(plan: Plan) -> str:
    rows = [_HEAD, *map(_row, plan.units), _total(plan.units)]
    lines = table(rows, text_columns=(0, 1, *range(_HEAD.index("strategy"), len(_HEAD))))
    for shards in dict.fromkeys(unit.size.shards for unit in plan.units):
        if shards is None:
            lines.append("per rank: not known without the number of ranks; pass world_size=N to plan()")
        else:
            lines.append(f"per rank: split into {shards.count}, from {shards.source}")
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _row(unit: Unit) -> tuple[str, ...]:
    policy = unit.kwargs.get("mp_policy")
    return (
        unit.fqn or "(root)",
        type(unit.module).__name__,
        str(unit.numel),
        readable(unit.size.full),
        _known(unit.size.per_rank),
        _known(unit.size.gathered),
        unit.options.strategy.name,
        str(unit.kwargs["reshard_after_forward"]),
        _policy(policy) if policy is not None else "-",
        "cpu" if isinstance(unit.kwargs["offload_policy"], CPUOffloadPolicy) else "-",
    )


def _total(units: Collection[Unit]) -> tuple[str, ...]:
    per_rank = [unit.size.per_rank for unit in units if unit.size.per_rank is not None]
    cells = (
        "total",
        "",
        str(sum(unit.numel for unit in units)),
        readable(sum(unit.size.full for unit in units)),
        _known(sum(per_rank) if len(per_rank) == len(units) else None),
    )
    return (*cells, *([""] * (len(_HEAD) - len(cells))))


def _known(size: int | None) -> str:
    return "-" if size is None else readable(size)


def _policy(policy: MixedPrecisionPolicy) -> str:
    inputs = ", casts inputs" if policy.cast_forward_inputs else ""
    return f"{_dtype(policy.param_dtype)}/{_dtype(policy.reduce_dtype)}{inputs}"


def _dtype(dtype: torch.dtype | None) -> str:
    return "-" if dtype is None else str(dtype).removeprefix("torch.")
