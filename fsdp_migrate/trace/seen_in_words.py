"""The words about a trace."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.report.summary import count
from fsdp_migrate.trace.record import Trace

_ENDS = {"over": "to its end", "running": "until it was stopped", "failed": "until the recorder failed"}

#: So many ranks are named.
_MANY = 8


def lines(trace: Trace) -> Iterator[str]:
    """What was seen, one fact a line; then how far it goes."""
    for wrap in trace.wraps:
        place = f"{wrap['at'][0]}:{wrap['at'][1]}" if wrap.get("at") else "outside of the project"
        told = [f"{wrap.get('class', 'a module')} in {count(len(wrap['units']), 'unit')}", str(wrap.get("strategy"))]
        norms = wrap.get("batch norm")
        told.append(f"BatchNorm in {', '.join(norms)}" if norms else "no BatchNorm")
        early = [trace.optimizers[number] for number in wrap.get("optimizers before", ())]
        told += [f"{one['class']} of {_place(one.get('at'))} was built before it" for one in early]
        yield f"{place}: wraps {', '.join(told)}"
    ran, models = _counts(trace)
    files = count(len(trace.files), "file")
    yield f"{files}, {count(ran, 'line')} ran, {count(models, 'expression')} with a sharded model"
    yield from (f"note: {note.splitlines()[-1]}" for note in trace.notes)
    yield f"{count(trace.steps, 'step')} on {len(trace.ended)} of {count(trace.world, 'rank')}{how_far(trace)}"


def _counts(trace: Trace) -> tuple[int, int]:
    """How many lines ran, and how many expressions were a sharded model."""
    models = sum("model" in value.kinds for file in trace.files.values() for value in file.values)
    return sum(len(file.lines) for file in trace.files.values()), models


def as_data(trace: Trace) -> dict[str, object]:
    """What was seen and how far it goes, for programs."""
    ran, models = _counts(trace)
    return {
        "world": trace.world,
        "steps": trace.steps,
        "ended": {str(rank): end for rank, end in sorted(trace.ended.items())},
        "missing": trace.missing,
        "is_whole": trace.is_whole,
        "files": sorted(trace.files),
        "lines_ran": ran,
        "expressions_with_a_model": models,
        "wraps": [
            {
                "path": wrap["at"][0] if wrap.get("at") else None,
                "line": wrap["at"][1] if wrap.get("at") else None,
                "class": wrap.get("class"),
                "units": len(wrap["units"]),
                "strategy": wrap.get("strategy"),
                "batch_norm": wrap.get("batch norm") or [],
            }
            for wrap in trace.wraps
        ],
        "notes": list(trace.notes),
    }


def how_far(trace: Trace) -> str:
    """How far the record goes, where the run did not end as it was to."""
    missing = f", {without(trace)}" if trace.missing else ""
    short = {rank: end for rank, end in trace.ended.items() if end not in ("steps", "over")}
    if trace.is_whole or not short:
        return missing
    return missing + ", " + ", ".join(f"rank {rank} {_ENDS[end]}" for rank, end in sorted(short.items()))


def without(trace: Trace) -> str:
    """The ranks of which there is no record; "" where there is none."""
    first = ", ".join(map(str, trace.missing[:_MANY]))
    more = f" and {len(trace.missing) - _MANY} more" if len(trace.missing) > _MANY else ""
    return f"without rank{'s' * (len(trace.missing) > 1)} {first}{more}" if trace.missing else ""


def _place(at: list[object] | None) -> str:
    return f"{at[0]}:{at[1]}" if at else "another place"
