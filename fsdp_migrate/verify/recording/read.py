"""Reads a folder of recordings, one file a rank, and puts the parts of the ranks together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.recorder.writer import FORMAT, VERSION
from fsdp_migrate.verify.recording.gpu_answers import answers
from fsdp_migrate.verify.recording.recording import (
    BadRecording,
    Call,
    Clip,
    Forward,
    Model,
    OfRank,
    OptimizerStart,
    OtherRanks,
    Parameter,
    Recording,
    State,
    Step,
)
from fsdp_migrate.verify.recording.value import Copies, read_value, together

_NAME = re.compile(r"rank-(\d+)\.jsonl")
_Event = dict[str, Any]
_READABLE = (1, VERSION)


def read(directory: Path) -> Recording:
    """The recording in ``directory``, or in the folders of nodes in it.

    Raises :class:`BadRecording` where there is nothing to compare: no file, ranks missing, ranks that disagree."""
    files = _files(directory)
    ranks = [_events(file) for file in files.values()]
    starts = [_start(events, file) for events, file in zip(ranks, files.values(), strict=True)]
    world = int(starts[0]["environment"]["world size"])
    if len(ranks) != world:
        raise OtherRanks(directory, [*files], world, all(one.get("of this node") == len(ranks) for one in starts))
    failures = tuple(str(e["reason"]) for events in ranks for e in events if e["kind"] == "failed")
    steps = [[event for event in events if event["kind"] == "step"] for events in ranks]
    optimizers = [[event for event in events if event["kind"] == "optimizer"] for events in ranks]
    if not failures:
        _same_number(directory, steps)
    models = _models(optimizers)
    known = {p.key: p for model in models for p in model.parameters}
    ends = [event for events in ranks for event in events if event["kind"] == "end"]
    return Recording(
        environments=tuple(start["environment"] for start in starts),
        models=models,
        optimizers=tuple(_optimizer(events, known) for events in zip(*optimizers, strict=False)),
        first_buffers=tuple(_buffers(events) for events in ranks),
        steps=tuple(_step(events, known) for events in zip(*steps, strict=False)),
        files=tuple(sorted({file for end in ends for file in end["files"]})),
        earlier=tuple(dict.fromkeys(file for end in ends for file in end["earlier"])),
        finished=len(ends) == world,
        asked=int(starts[0]["steps"]),
        deep=int(starts[0]["deep"]),
        failures=failures,
        answers=tuple(answers(directory)),
    )


def _files(directory: Path) -> dict[int, Path]:
    if not directory.is_dir():
        raise BadRecording(f"{directory}: there is no such folder; fsdp-migrate verify record creates it")
    again = sorted(file.name for file in directory.glob("**/rank-*.again-*.jsonl"))
    if again:
        rank = again[0].split(".")[0]
        raise BadRecording(f"{directory}: two processes recorded as {rank}; record one training at a time")
    found: dict[int, Path] = {}
    # Each node may have written a folder.
    for file in sorted([*directory.glob("rank-*.jsonl"), *directory.glob("*/rank-*.jsonl")]):
        if match := _NAME.fullmatch(file.name):
            number = int(match[1])
            if number in found:
                raise BadRecording(
                    f"{directory}: rank {number} is in {found[number]} and {file}: keep only one training run"
                )
            found[number] = file
    if not found:
        raise BadRecording(f"{directory}: no optimizer step was recorded in it")
    return dict(sorted(found.items()))


def _events(file: Path) -> list[_Event]:
    events = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            event = json.loads(line)
        except json.JSONDecodeError as error:
            if number > 1 and not line.endswith("}"):
                # The process was killed in the middle of a line; what came before is whole.
                break
            raise BadRecording(f"{file}: line {number} is not JSON: {error}") from error
        if not isinstance(event, dict) or "kind" not in event:
            raise BadRecording(f"{file}: line {number} is not an event of a recording")
        events.append(event)
    return events


def _start(events: Sequence[_Event], file: Path) -> _Event:
    start = next((event for event in events if event["kind"] == "start"), None)
    if start is None:
        reason = next((str(e["reason"]) for e in events if e["kind"] == "failed"), "its first line is missing")
        raise BadRecording(f"{file}: not a recording: {reason}")
    if start.get("format") != FORMAT or start.get("version") not in _READABLE:
        wanted = f"{FORMAT} {VERSION}"
        raise BadRecording(f"{file}: this is {start.get('format')} {start.get('version')}, not {wanted}; record again")
    return start


def _same_number(directory: Path, steps: Sequence[Sequence[_Event]]) -> None:
    counts = [len(each) for each in steps]
    if len(set(counts)) > 1:
        told = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
        raise BadRecording(f"{directory}: the ranks recorded different numbers of steps ({told})")


def _models(optimizers: Sequence[Sequence[_Event]]) -> tuple[Model, ...]:
    # The last optimizer to start has seen every model that ran before its first step.
    latest = [events[-1]["models"] for events in optimizers if events]
    if not latest:
        return ()
    models = []
    for of_ranks in zip(*latest, strict=False):
        first = of_ranks[0]
        by_key = [{p["key"]: p for p in model["parameters"]} for model in of_ranks]
        keys = dict.fromkeys(key for keys in by_key for key in keys)
        parameters = []
        for key in keys:
            mine = {rank: found[key] for rank, found in enumerate(by_key) if key in found}
            one = next(iter(mine.values()))
            parameters.append(
                Parameter(
                    key,
                    tuple(one["names"]),
                    tuple(one["shape"]),
                    one["dtype"],
                    one["trained"],
                    {rank: p["replica"] for rank, p in mine.items()},
                    {rank: p["numel"] for rank, p in mine.items()},
                )
            )
        models.append(Model(first["class"], tuple(parameters), tuple(first["units"])))
    return tuple(models)


def _optimizer(events: Sequence[_Event], known: Mapping[str, Parameter]) -> OptimizerStart:
    first = events[0]
    weights = _copies([event["weights"] for event in events], known)
    groups = tuple(tuple(group) for group in first["groups"])
    state = _states([event.get("state", {}) for event in events], known)
    empty = tuple(rank for rank, event in enumerate(events) if state and not event["state"])
    between, within = (
        frozenset(name for event in events for name in event.get("shared", {}).get(where, ()))
        for where in ("between", "within")
    )
    return OptimizerStart(first["optimizer"], groups, tuple(first["missing"]), weights, state, empty, between, within)


def _buffers(events: Sequence[_Event]) -> dict[str, Any]:
    written: dict[str, Any] = next((event["values"] for event in events if event["kind"] == "buffers"), {})
    return {key: read_value(value) for key, value in written.items()}


def _step(events: Sequence[_Event], known: Mapping[str, Parameter]) -> Step:
    first = events[0]
    return Step(
        first["optimizer"],
        first["step"],
        tuple(_of_rank(event) for event in events),
        _copies([event["unclipped"] for event in events], known),
        _copies([event["grads"] for event in events], known),
        _copies([event["weights"] for event in events], known),
        _states([event["state"] for event in events], known),
        tuple(first["settings"]),
    )


def _states(written: Sequence[Mapping[str, Any]], known: Mapping[str, Parameter]) -> dict[str, State]:
    states: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for of_rank in written for key in of_rank):
        of_ranks = [of_rank.get(key, {}) for of_rank in written]
        for name in dict.fromkeys(name for state in of_ranks for name in state):
            found = [state.get(name) for state in of_ranks]
            plain = next((value for value in found if not isinstance(value, list) and value is not None), None)
            states.setdefault(key, {})[name] = plain if plain is not None else _state(key, found, known)
    return dict(states)


def _of_rank(event: _Event) -> OfRank:
    return OfRank(
        tuple(Forward(f["root"], f["grad"], tuple(map(read_value, f["tensors"].values()))) for f in event["inputs"]),
        tuple(read_value(loss["value"]) for loss in event["losses"]),
        tuple(
            Clip(clip["limit"], read_value(clip.get("value")), clip.get("partial", False)) for clip in event["clips"]
        ),
        tuple(Call(call["module"], call["what"], read_value(call.get("value"))) for call in event["calls"]),
        {key: read_value(value) for key, value in event["buffers"].items()},
        event["seconds"],
        event["peak"],
        event["collectives"],
        event.get("random", ""),
    )


def _state(key: str, found: Iterable[list[Any] | None], known: Mapping[str, Parameter]) -> Copies:
    values = {rank: read_value(value) for rank, value in enumerate(found)}
    parameter = known.get(key)
    sizes = {value.numel for value in values.values() if value is not None}
    if parameter is None or any(value and value.numel != parameter.parts.get(r) for r, value in values.items()):
        # One number, or a form of its own that each rank has for itself.
        if sizes == {1}:
            return (next(value for value in values.values() if value is not None),)
        return tuple(values.values())
    return _of_parameter(values, parameter)


def _copies(written: Sequence[Mapping[str, Any]], known: Mapping[str, Parameter]) -> dict[str, Copies]:
    found: dict[str, Copies] = {}
    for key in dict.fromkeys(key for of_rank in written for key in of_rank):
        values = {rank: read_value(of_rank[key]) for rank, of_rank in enumerate(written) if key in of_rank}
        parameter = known.get(key)
        found[key] = tuple(values.values()) if parameter is None else _of_parameter(values, parameter)
    return found


def _of_parameter(values: Mapping[int, Any], parameter: Parameter) -> Copies:
    replicas = sorted({parameter.replicas.get(rank, rank) for rank in values})
    return tuple(
        together(
            (value for rank, value in values.items() if parameter.replicas.get(rank, rank) == replica), parameter.numel
        )
        for replica in replicas
    )
