"""The record of a traced run: one JSON document for all ranks.

``files`` has for each file of the project that ran its SHA-256, the lines that began with how often each rank began
them, and the values of expressions: position (lines from 1, columns from 0 in characters), how often it was what, and
the ranks that looked. docs/trace.md says what every key means.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "fsdp-migrate trace"
#: Goes up with every change that an older reader would misread.
VERSION = 1
_OF_A_RANK = "fsdp-migrate trace of a rank"
#: How a process may have come to its end, the best first.
ENDS = ("steps", "over", "running", "failed")


class BadTrace(Exception):
    """A record that cannot be used; the message names the file and says why."""


@dataclass(frozen=True)
class Value:
    """What one expression was: ``kinds`` counts looks; ``ranks`` are those that looked."""

    position: tuple[int, int, int, int]
    kinds: Mapping[str, int]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class TracedFile:
    """One file of the project. ``lines`` has how often each line began, by rank."""

    sha256: str
    lines: Mapping[int, Mapping[int, int]]
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Trace:
    """All that one run showed. ``ended`` says of each rank how far it got; ``notes`` what it could not see.

    ``reads`` and ``statics`` are uses of sharded models: path, position, name, what it was called with (statics), type
    of state in force, count. ``wraps`` and ``optimizers`` are those of the least rank that has any.
    """

    world: int
    steps: int
    ended: Mapping[int, str]
    versions: Mapping[str, Any]
    argv: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    files: Mapping[str, TracedFile] = field(default_factory=dict)
    reads: tuple[tuple[Any, ...], ...] = ()
    statics: tuple[tuple[Any, ...], ...] = ()
    wraps: tuple[Mapping[str, Any], ...] = ()
    optimizers: tuple[Mapping[str, Any], ...] = ()

    @property
    def missing(self) -> list[int]:
        """The ranks of the world of which there is no record."""
        return [rank for rank in range(self.world) if rank not in self.ended]

    @property
    def is_whole(self) -> bool:
        """Whether every rank of the world is in it, and each ended by itself or after the steps asked for."""
        return not self.missing and all(end in ("steps", "over") for end in self.ended.values())


def merged(documents: Sequence[Mapping[str, Any]]) -> Trace:
    """One trace of what the processes of a run wrote."""
    known = [one for one in documents if one.get("format") == _OF_A_RANK]
    known.sort(key=lambda one: (one["rank"], -len(one["files"])))
    paths = sorted({path for one in known for path in one["files"]})
    notes = sorted({f"{note}" for one in known for note in one["notes"].values()})
    files = {}
    for path in paths:
        found = [(one["rank"], one["files"][path]) for one in known if path in one["files"]]
        if len({each["sha256"] for _, each in found}) > 1:
            notes.append(f"{path} is not the same file on all ranks: it is left out")
            continue
        files[path] = _file(found)
    ended: dict[int, str] = {}
    for one in known:
        before = ended.get(one["rank"], one["ended"])
        ended[one["rank"]] = max(before, one["ended"], key=ENDS.index)
    most = max(known, key=lambda one: len(one["wraps"]), default={})
    return Trace(
        world=max((one["versions"]["world size"] for one in known), default=0),
        steps=min((one["steps"] for one in known if one["steps"]), default=0),
        ended=ended,
        versions={name: value for name, value in most.get("versions", {}).items() if name != "world size"},
        argv=tuple(most.get("argv", ())),
        notes=tuple(notes),
        files=files,
        reads=added(one["reads"] for one in known),
        statics=added(one["statics"] for one in known),
        wraps=joined_wraps(most.get("wraps", ()), [one["wraps"] for one in known]),
        optimizers=tuple(most.get("optimizers", ())),
    )


def _file(found: Sequence[tuple[int, Mapping[str, Any]]]) -> TracedFile:
    lines: dict[int, dict[int, int]] = defaultdict(dict)
    kinds: dict[tuple[int, ...], Counter[str]] = defaultdict(Counter)
    ranks: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for rank, each in found:
        for line, runs in each["lines"].items():
            lines[int(line)][rank] = lines[int(line)].get(rank, 0) + runs
        for *position, seen in each["values"]:
            kinds[tuple(position)].update(seen)
            ranks[tuple(position)].add(rank)
    values = tuple(
        Value((at[0], at[1], at[2], at[3]), dict(seen), tuple(sorted(ranks[at]))) for at, seen in sorted(kinds.items())
    )
    return TracedFile(found[0][1]["sha256"], {line: dict(lines[line]) for line in sorted(lines)}, values)


def joined_wraps(
    most: Sequence[Mapping[str, Any]], of_ranks: Iterable[Sequence[Mapping[str, Any]]]
) -> tuple[Mapping[str, Any], ...]:
    """The wraps of one rank, with what any rank had besides, and had not seen to be used."""
    found = [dict(wrap) for wrap in most]
    for wraps in of_ranks:
        if len(wraps) != len(found):
            continue
        for wrap, other in zip(found, wraps, strict=True):
            wrap["batch norm"] = wrap["batch norm"] or other["batch norm"]
            wrap["meta"] = wrap["meta"] or other["meta"]
            wrap["steps"] = min(wrap["steps"], other["steps"])
            wrap["unused"] = {n: max(wrap["unused"].get(n, 0), other["unused"].get(n, 0)) for n in _both(wrap, other)}
    return tuple(found)


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted({*one["unused"], *other["unused"]})


def added(lists: Iterable[Iterable[Sequence[Any]]]) -> tuple[tuple[Any, ...], ...]:
    """Uses of sharded models, with the counts of the same use added."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for uses in lists:
        for path, position, *rest, count in uses:
            key = (path, tuple(position), *rest)
            counts[key] += count
    return tuple((*key, count) for key, count in sorted(counts.items(), key=repr))


def dumped(trace: Trace) -> str:
    """The document of a trace."""
    document = asdict(trace)
    for path, file in document["files"].items():
        file["values"] = [[*value.position, value.kinds, list(value.ranks)] for value in trace.files[path].values]
    return json.dumps({"format": FORMAT, "version": VERSION, **document}, separators=(",", ":")) + "\n"


def load(file: Path) -> Trace:
    """The trace in ``file``. Raises :class:`BadTrace` where there is none."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadTrace(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise BadTrace(f"{file} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise BadTrace(f"{file} is not a record of fsdp-migrate trace")
    version = document.pop("version", None)
    if version != VERSION:
        raise BadTrace(f"{file} has version {version}; this fsdp-migrate reads version {VERSION}: trace again")
    try:
        return _of_document(document)
    except (KeyError, TypeError, ValueError) as error:
        raise BadTrace(f"{file} is damaged ({type(error).__name__}: {error}): trace again") from error


def _of_document(document: dict[str, Any]) -> Trace:
    files = {
        path: TracedFile(
            each["sha256"],
            {int(line): {int(rank): runs for rank, runs in by.items()} for line, by in each["lines"].items()},
            tuple(Value((a, b, c, d), kinds, tuple(ranks)) for a, b, c, d, kinds, ranks in each["values"]),
        )
        for path, each in document["files"].items()
    }
    return Trace(
        world=document["world"],
        steps=document["steps"],
        ended={int(rank): end for rank, end in document["ended"].items()},
        versions=document["versions"],
        argv=tuple(document["argv"]),
        notes=tuple(document["notes"]),
        files=files,
        reads=tuple(map(tuple, document["reads"])),
        statics=tuple(map(tuple, document["statics"])),
        wraps=tuple(document["wraps"]),
        optimizers=tuple(document["optimizers"]),
    )
