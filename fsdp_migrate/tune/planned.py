"""A layout as ``rewrite`` writes it: in memory, and in the JSON that ``tune`` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fsdp_migrate.tune.layout_code import ahead, units_below
from fsdp_migrate.tune.present import Present
from fsdp_migrate.tune.ranking import Ranked
from fsdp_rules.settings import PlannedUnits


class BadPlan(ValueError):
    """A file that is not a plan of ``tune``, or has none that ``rewrite`` can write; the message says which."""


def planned(found: Present, now: Ranked, chosen: Ranked) -> PlannedUnits | None:
    """The units of ``chosen``; None where they need another mesh than the program's, which it sets itself."""
    own, layout = found.layout, chosen.proposal.layout
    if (own.shards, own.replicas) != (layout.shards, layout.replicas) or layout.units[-1].reshard is not None:
        return None
    return PlannedUnits(
        layout.name,
        units_below(found.model, layout),
        ahead(found.model, layout),
        f"{_collectives(chosen)} a step in place of {_collectives(now)}",
        chosen.proposal.order,
    )


def _collectives(row: Ranked) -> str:
    return f"{row.schedule.gathers} gathers and {row.schedule.scatters} scatters"


def plain(units: PlannedUnits | None) -> dict[str, Any] | None:
    """As JSON has it."""
    return None if units is None else asdict(units)


def load(path: Path) -> PlannedUnits:
    """What ``tune --format json`` wrote. Raises :class:`BadPlan`."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadPlan(f"{path} cannot be read: {error}") from error
    if not isinstance(values, Mapping) or values.get("format") != "fsdp-migrate tune":
        raise BadPlan(f"{path} is not what fsdp-migrate tune --format json prints")
    units = values.get("planned")
    if units is None:
        raise BadPlan(f"{path} has no layout on the program's own mesh: name one by tune --show LAYOUT")
    try:
        lines, behind, *texts = (units[key] for key in ("lines", "behind", "name", "costs", "order"))
        if not all(isinstance(text, str) for text in (*lines, *behind, *texts)):
            raise TypeError
    except (KeyError, TypeError) as error:
        raise BadPlan(f"{path} has a plan of another form") from error
    name, costs, order = texts
    return PlannedUnits(name, tuple(lines), tuple(behind), costs, order)
