"""What a preflight found, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from fsdp_compat.preflight.facts import UnitFacts
from fsdp_compat.tables import readable, table


@dataclass(frozen=True)
class Suspicion:
    """``level``: "manual" for what trains wrongly or fails, "review" for what costs memory or time, or may be meant."""

    check: str
    level: str
    where: str
    message: str
    cure: str


@dataclass(frozen=True)
class PreflightReport:
    """``exit_code`` is 1 if there is anything at level "manual" or "review", else 0. ``str(report)`` is a table."""

    units: tuple[UnitFacts, ...]
    suspicions: tuple[Suspicion, ...]
    world: int

    @property
    def exit_code(self) -> int:
        return int(bool(self.suspicions))

    def __str__(self) -> str:
        head = ("unit", "kind", "elements", "bytes", "per rank", "gathered", "dtypes", "reshard", "ranks")
        lines = table([head, *map(_row, self.units)], text_columns=(0, 1, 6, 7, 8)) if self.units else ["no unit"]
        for found in self.suspicions:
            lines += [f"{found.level}: {found.where}: {found.message} [{found.check}]", f"    {found.cure}"]
        lines.append(f"{len(self.units)} units, {len(self.suspicions)} suspicious on {self.world} ranks")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain values: ``units`` and ``suspicions``, as :meth:`to_json` writes them."""
        return {
            "format": "fsdp-migrate preflight",
            "version": 1,
            "world": self.world,
            "units": [_plain(unit) for unit in self.units],
            "suspicions": [vars(found) for found in self.suspicions],
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2) + "\n"


def _row(unit: UnitFacts) -> tuple[str, ...]:
    held = "/".join(map(_dtype, unit.dtypes))
    ranks = f"{unit.shards} shards" + (f" x {unit.replicas} replicas" if unit.replicas > 1 else "")
    dtypes = (
        f"{held} in {_dtype(unit.param_dtype)}, reduced in {_dtype(unit.reduce_dtype)}" if unit.param_dtype else held
    )
    return (
        unit.name or "(root)",
        unit.kind,
        str(unit.numel),
        readable(unit.nbytes),
        readable(unit.local),
        readable(unit.gathered),
        dtypes,
        str(unit.reshard),
        ranks,
    )


def _plain(unit: UnitFacts) -> dict[str, Any]:
    values = {name: value for name, value in vars(unit).items() if name != "module"}
    values["dtypes"] = [_dtype(dtype) for dtype in unit.dtypes]
    for name in ("param_dtype", "reduce_dtype", "output_dtype"):
        values[name] = _dtype(values[name]) if values[name] is not None else None
    values["parameters"] = list(unit.parameters)
    return values


def _dtype(dtype: torch.dtype | None) -> str:
    return "-" if dtype is None else str(dtype).removeprefix("torch.")
