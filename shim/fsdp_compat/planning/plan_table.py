"""A plan as a table: one line per unit, then on what the bytes rest, and where the units differ from FSDP1's."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from fsdp_compat.tables import readable, table

if TYPE_CHECKING:
    from fsdp_compat.planning.make_plan import Plan, Unit

_ARGUMENTS = ("reshard_after_forward", "mp_policy", "offload_policy")
_HEAD = ("unit", "class", "elements", "parameters", "per rank", "gathered", "strategy", *_ARGUMENTS)


def plan_table(plan: Plan) -> str:
    """The text of ``str(plan)``."""
    rows = [_HEAD, *map(_row, plan.units), _total(plan.units)]
    lines = table(rows, text_columns=(0, 1, *range(_HEAD.index("strategy"), len(_HEAD))))
    for shards in dict.fromkeys(unit.size.shards for unit in plan.units):
        if shards is None:
            lines.append("per rank: not known without the number of ranks; pass world_size=N to plan()")
        else:
            lines.append(f"per rank: cut into {shards.count}, from {shards.source}")
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
