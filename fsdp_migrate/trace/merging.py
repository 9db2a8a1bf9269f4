"""One record of several: those of the nodes of a run, and those of runs that went different ways."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsdp_migrate.trace.record import ENDS, BadTrace, Trace, TracedFile, Value, added, joined_wraps


def merge(records: Sequence[tuple[Path, Trace]]) -> Trace:
    """All that the records show, with their counts added.

    Records with other ranks of the same world and command are of one run, as each node writes its own. A rank that a
    run lacks is missing in the whole, which then denies nothing. Raises :class:`BadTrace` where a file is not the same
    in two records.
    """
    hashes: dict[str, tuple[Path, str]] = {}
    for name, trace in records:
        for path, file in trace.files.items():
            first, known = hashes.setdefault(path, (name, file.sha256))
            if known != file.sha256:
                raise BadTrace(f"{path} is not the same file in {first} and {name}: trace both runs of the same code")
    runs = _runs([trace for _, trace in records])
    wholes = [_of_nodes(nodes) for nodes in runs]
    optimizers: list[Mapping[str, Any]] = []
    wraps: list[Mapping[str, Any]] = []
    for whole in wholes:
        # A wrap names optimizers by their numbers.
        first_of_run = len(optimizers)
        for wrap in whole.wraps:
            wraps.append({**wrap, "optimizers before": [first_of_run + each for each in wrap["optimizers before"]]})
        optimizers += whole.optimizers
    return replace(
        wholes[0],
        world=max(whole.world for whole in wholes),
        steps=sum(whole.steps for whole in wholes),
        ended=_ends(wholes),
        notes=tuple(sorted({note for whole in wholes for note in whole.notes})),
        files={path: _file([whole.files[path] for whole in wholes if path in whole.files]) for path in sorted(hashes)},
        reads=added(whole.reads for whole in wholes),
        statics=added(whole.statics for whole in wholes),
        wraps=tuple(wraps),
        optimizers=tuple(optimizers),
    )


def _runs(traces: Iterable[Trace]) -> list[list[Trace]]:
    """The records by run, in order."""
    runs: list[list[Trace]] = []
    for trace in traces:
        for nodes in runs:
            of_same_kind = (trace.world, trace.argv) == (nodes[0].world, nodes[0].argv)
            if of_same_kind and not any(trace.ended.keys() & node.ended.keys() for node in nodes):
                nodes.append(trace)
                break
        else:
            runs.append([trace])
    return runs


def _of_nodes(nodes: Sequence[Trace]) -> Trace:
    """One run of what its nodes saw."""
    most = max(nodes, key=lambda node: len(node.wraps))
    return replace(
        most,
        steps=min(node.steps for node in nodes),
        ended={rank: end for node in nodes for rank, end in node.ended.items()},
        notes=tuple(note for node in nodes for note in node.notes),
        files={
            path: _file([node.files[path] for node in nodes if path in node.files])
            for path in {path for node in nodes for path in node.files}
        },
        reads=added(node.reads for node in nodes),
        statics=added(node.statics for node in nodes),
        wraps=joined_wraps(most.wraps, [node.wraps for node in nodes]),
    )


def _ends(wholes: Sequence[Trace]) -> dict[int, str]:
    """How each rank ended in the run in which it got least far; a rank that a run lacks has no end."""
    ranks = {rank for whole in wholes for rank in whole.ended}
    missing = {rank for whole in wholes for rank in whole.missing}
    return {
        rank: max((whole.ended[rank] for whole in wholes if rank in whole.ended), key=ENDS.index)
        for rank in sorted(ranks - missing)
    }


def _file(parts: Sequence[TracedFile]) -> TracedFile:
    lines: dict[int, Counter[int]] = defaultdict(Counter)
    kinds: dict[tuple[int, int, int, int], Counter[str]] = defaultdict(Counter)
    looked: dict[tuple[int, int, int, int], set[int]] = defaultdict(set)
    passed: dict[tuple[int, int, int, int], set[int]] = defaultdict(set)
    for part in parts:
        for line, by_rank in part.lines.items():
            lines[line].update(by_rank)
        for value in part.values:
            kinds[value.position].update(value.kinds)
            looked[value.position] |= set(value.ranks)
    for part in parts:
        seen = {value.position: set(value.ranks) for value in part.values}
        for position in kinds:
            # A rank has looked if it did in each run in which it came by.
            passed[position] |= part.lines.get(position[0], {}).keys() - seen.get(position, set())
    values = (Value(at, dict(kinds[at]), tuple(sorted(looked[at] - passed[at]))) for at in sorted(kinds))
    return TracedFile(parts[0].sha256, {line: dict(lines[line]) for line in sorted(lines)}, tuple(values))
