"""What ``tune`` prints: a table of layouts, why each may be worth it, and the code of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsdp_migrate.tune import planned
from fsdp_migrate.tune.layout_code import code
from fsdp_migrate.tune.machine import Machine
from fsdp_migrate.tune.present import Present
from fsdp_migrate.tune.ranking import Ranked, Ranking

_HEAD = ("layout", "gathers", "scatters", "reduced", "moved", "gathered", "memory", "step", "exposed", "than now")


def lines(ranking: Ranking, found: Present, machine: Machine, memory: int, chosen: Ranked | None) -> Iterator[str]:
    """The report; ``chosen``: whose code is printed."""
    now = found.layout
    ranks = f"{now.ranks} ranks" + (f" as {now.replicas} x {now.shards}" if now.replicas > 1 else "")
    yield f"{found.kind} on {ranks}, planned for {machine.name} with {readable(memory)} per rank"
    yield ""
    before = () if ranking.fsdp1 is None else (ranking.fsdp1,)
    rows = [_HEAD, *(_row(row, ranking.now) for row in (*before, *ranking.ranked))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join((row[0].ljust(widths[0]), *cells)).rstrip()
    yield ""
    for each in (*before, *ranking.ranked):
        order = f"; {each.proposal.order}: other rounding" if each.proposal.order else ""
        yield f"{each.name}: {each.proposal.reason}{order}{'' if each.fits else '; does not fit'}"
    yield ""
    yield _verdict(ranking)
    if chosen is not None:
        device = "cpu" if found.device == "cpu" else "cuda"
        yield ""
        yield f"# {chosen.name}"
        yield code(found.model, chosen.proposal.layout, device)


def _verdict(ranking: Ranking) -> str:
    best, now = ranking.best, ranking.now
    if best is None:
        smallest = min(ranking.ranked, key=lambda row: row.schedule.memory)
        return f"nothing fits: {smallest.name} needs the least memory, {readable(smallest.schedule.memory)}"
    if best is now:
        return "keep the program's layout: no other is predicted to be 2 % faster"
    change = best.schedule.times.step / now.schedule.times.step - 1
    same = "the losses change in their last digits" if best.proposal.order else "no number changes in fp32"
    return f"take {best.name}: {change:+.1%} time, {_more(best, now)} memory; {same}"


def _more(row: Ranked, now: Ranked) -> str:
    return f"{row.schedule.memory / now.schedule.memory - 1:+.1%}"


def _row(row: Ranked, now: Ranked) -> tuple[str, ...]:
    plan = row.schedule
    return (
        row.name,
        str(plan.gathers),
        str(plan.scatters),
        str(plan.reductions),
        readable(plan.gather_bytes + plan.scatter_bytes + plan.reduction_bytes),
        readable(plan.gathered),
        readable(plan.memory) + ("" if row.fits else " !"),
        seconds(plan.times.step),
        seconds(plan.times.exposed),
        "" if row is now else f"{plan.times.step / now.schedule.times.step - 1:+.1%}",
    )


def plain(ranking: Ranking, found: Present, machine: Machine, memory: int, chosen: Ranked | None) -> dict[str, Any]:
    """The same as plain values; bytes and seconds."""
    device = "cpu" if found.device == "cpu" else "cuda"
    return {
        "kind": found.kind,
        "ranks": found.layout.ranks,
        "machine": machine.name,
        "memory": memory,
        "best": ranking.best.name if ranking.best else None,
        "layouts": [_values(row) for row in ranking.ranked],
        "fsdp1": None if ranking.fsdp1 is None else _values(ranking.fsdp1),
        "code": code(found.model, chosen.proposal.layout, device) if chosen else None,
        "planned": planned.plain(planned.planned(found, ranking.now, chosen)) if chosen else None,
    }


def _values(row: Ranked) -> dict[str, Any]:
    plan, layout = row.schedule, row.proposal.layout
    return {
        "name": row.name,
        "reason": row.proposal.reason,
        "sums_in_another_order": bool(row.proposal.order),
        "fits": row.fits,
        "shards": layout.shards,
        "replicas": layout.replicas,
        "units": len(layout.units),
        "gathers": plan.gathers,
        "scatters": plan.scatters,
        "reductions": plan.reductions,
        "gather_bytes": plan.gather_bytes,
        "scatter_bytes": plan.scatter_bytes,
        "reduction_bytes": plan.reduction_bytes,
        "peak_gathered": plan.gathered,
        "peak_gathered_with_buffers": plan.communicated,
        "peak": plan.memory,
        "at_peak": dict(plan.at_peak),
        "seconds": plan.times.step,
        "computing": plan.times.computing,
        "communicating": plan.times.communicating,
        "exposed": plan.times.exposed,
    }


def readable(size: float) -> str:
    """Bytes in the largest binary unit that leaves at least one of it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def seconds(value: float) -> str:
    """Seconds, or the thousandths or millionths that leave at least one."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"
