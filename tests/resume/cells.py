"""Runs one combination: FSDP1 saves and goes on, FSDP2 loads and goes on, and the two are compared."""

from __future__ import annotations

import enum
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.checkpoints.judge.judge import judge
from fsdp_migrate.checkpoints.judge.loading import line
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_rules.settings import Settings
from tests.checkpoints.convert.converting import converted
from tests.parity.compare import differ
from tests.parity.harness import SCRIPT
from tests.parity.ordered import fsdp1_on_cpu_in_rank_order, sums_in_rank_order
from tests.parity.specs import Spec
from tests.parity.trees import rewrite_by_command
from tests.pool import Pool, WorkerError
from tests.resume.factors import ONLY_LOSSES, tolerance
from tests.resume.program import program

#: The findings that send old files to ``checkpoint convert``, and the one that a load is as empty as FSDP1's.
_SAID = re.compile(r"FSDP40[123]|FSDP313.* as under FSDP1")


class Outcome(str, enum.Enum):
    """How a combination came out."""

    EQUAL = "equal"
    CLOSE = "equal within rounding"
    REFUSED = "refused"
    FSDP1_FAILS = "FSDP1 fails"
    LIKE_FSDP1 = "like FSDP1"
    DIFFERENT = "different"
    FAILED = "failed"

    @property
    def is_good(self) -> bool:
        """Whether a user is told what to do, or has nothing to do."""
        return self not in (Outcome.DIFFERENT, Outcome.FAILED)


@dataclass(frozen=True)
class Cell:
    """One combination with its outcome, and what is to be said about it."""

    spec: Spec
    outcome: Outcome
    detail: str = ""


class Refused(Exception):
    """Something says that it cannot be done, and what to do instead."""


def run(pool: Pool, spec: Spec, directory: Path) -> Cell:
    """Train ``spec`` in ``directory``, which is empty and the root of the paths in what is said."""
    cell = _run_in(pool, spec, directory)
    if cell.outcome is Outcome.REFUSED and "FSDP" not in cell.detail and "--" not in cell.detail:
        cell = replace(cell, outcome=Outcome.FAILED, detail=f"refused without advice: {cell.detail}")
    return replace(cell, detail=cell.detail.replace(f"{directory}/", ""))


def _run_in(pool: Pool, spec: Spec, directory: Path) -> Cell:
    saving, resuming = (int(part.removesuffix("h")) for part in spec["ranks"].split(" to "))
    source, target = directory / "before", directory / "after"
    for folder in (source, target, source / "checkpoint"):
        folder.mkdir()
    try:
        before = _run(pool, program(spec), saving, source, "save", source, fsdp1=True)
    except WorkerError as error:
        return Cell(spec, Outcome.FSDP1_FAILS, _error(error))
    try:
        text, advice = _resuming(spec, source)
    except Refused as reason:
        return Cell(spec, Outcome.REFUSED, str(reason))
    try:
        after = _run(pool, text, resuming, target, "resume", source, fsdp1=False)
    except WorkerError as error:
        if advice:
            return Cell(spec, Outcome.REFUSED, advice)
        if spec["way"] == "shim":
            return _fails_too(pool, spec, source, target)
        return Cell(spec, Outcome.FAILED, str(error))
    if different := list(_differences(spec, before, after)):
        return _like_fsdp1(pool, spec, source, target, after, advice, "; ".join(different[:6]))
    return Cell(spec, Outcome.CLOSE if tolerance(spec)[0] else Outcome.EQUAL, tolerance(spec)[1])


def _like_fsdp1(pool: Pool, spec: Spec, source: Path, target: Path, after: Any, advice: str, different: str) -> Cell:
    """The cell of a run that goes on otherwise than one that never stopped, which is right where FSDP1 does so too."""
    resuming = int(spec["ranks"].split(" to ")[1])
    try:
        own = _run(pool, program(spec), resuming, target, "resume", source, fsdp1=True)
    except WorkerError as error:
        return Cell(spec, Outcome.FSDP1_FAILS if advice else Outcome.DIFFERENT, _error(error) if advice else different)
    if list(_differences(spec, own, after)):
        return Cell(spec, Outcome.DIFFERENT, different)
    return Cell(spec, Outcome.REFUSED if advice else Outcome.LIKE_FSDP1, advice or different)


def _fails_too(pool: Pool, spec: Spec, source: Path, target: Path) -> Cell:
    """The cell of a program that fails under the shim, which is right where it fails under FSDP1 too."""
    resuming = int(spec["ranks"].split(" to ")[1])
    try:
        _run(pool, program(spec), resuming, target, "resume", source, fsdp1=True)
    except WorkerError as error:
        return Cell(spec, Outcome.FSDP1_FAILS, _error(error))
    return Cell(spec, Outcome.FAILED, "under the shim alone")


def _run(pool: Pool, text: str, ranks: int, folder: Path, phase: str, path: Path, *, fsdp1: bool) -> Any:
    import torch

    shutil.copy(Path(__file__).with_name("nets.py"), folder)
    (folder / "train.py").write_text(text)
    prelude = fsdp1_on_cpu_in_rank_order if fsdp1 else sums_in_rank_order
    result = folder / "result.pt"
    pool.run_script(folder / "train.py", ranks, [phase, str(path), str(result)], prelude=prelude)
    return torch.load(result, weights_only=True)


def _error(failure: WorkerError) -> str:
    """The line of the first error in what the ranks printed."""
    lines = (line.strip() for line in str(failure).splitlines())
    return next((line for line in lines if re.match(r"[\w.]*Error\b", line)), str(failure).strip().splitlines()[-1])


def _resuming(spec: Spec, source: Path) -> tuple[str, str]:
    """The program that resumes from what lies in ``source``, and what it says of files that it does not load."""
    is_printed = spec["way"] not in ("rewrite", "shim")
    if is_printed:
        lines = [_line(path, spec["way"], source) for path in _checkpoints(spec, source)]
        (source / "lines.json").write_text(json.dumps(lines))
    text = program(spec, "printed") if is_printed else program(spec)
    after = rewrite_by_command({SCRIPT: text}, Settings(to="shim" if spec["way"] == "shim" else "native"))
    if left := after.manual():
        raise Refused("; ".join(left))
    told = [f"{found.rule}: {found.message}: {found.advice}" for found in after.findings]
    said = [text for text in told if _SAID.search(text)]
    return after.files[SCRIPT], "; ".join(said)


def _checkpoints(spec: Spec, source: Path) -> Iterator[Path]:
    if spec["form"] == "raw":
        yield source / "model.pt"
    is_file = spec["form"].startswith("full")
    yield source / ("checkpoint.pt" if is_file else "checkpoint")


def _line(path: Path, way: str, source: Path) -> str:
    """The line that is printed for ``path``, or for what it is converted to."""
    steps = {"inspect": (), "dcp": (Target.DCP,), "full and back": (Target.FULL, Target.DCP)}[way]
    wanted = {"template": source / "template.json", "groups": source / "groups.json"}
    try:
        for number, to in enumerate(steps):
            new = source / f"{path.stem}-{number}{'.pt' if to is Target.FULL else ''}"
            converted(path, new, to, **(wanted if number == 0 else {}))
            path = new
        (found,) = open_all(path)
    except (CannotConvert, BadCheckpoint) as reason:
        raise Refused(str(reason)) from reason
    text = line(found)
    if text.startswith("#"):
        raise Refused("; ".join(f"{one.rule} {one.message}: {one.advice}" for one in judge(found)))
    return text


def _differences(spec: Spec, before: Any, after: Any) -> Iterator[str]:
    """What differs between the two runs: when loaded at all, and later by more than :func:`tolerance` allows."""
    relative, _ = tolerance(spec)
    # An element of eight bits that is rounded the other way is one of some hundred steps apart.
    of_states = max(relative, 0.1) if spec["optimizer"] == "quantised" and relative else relative
    if relative and spec["model"] == "pure bf16":
        # A momentum sums what the weights' roundings make of each step's gradients.
        of_states = max(of_states, 5e-2)
    means = ([sum(ranks) / len(ranks) for ranks in zip(*one["losses"], strict=True)] for one in (before, after))
    yield from _observed("loaded", before["loaded"], after["loaded"])
    yield from differ("loss", *((before["losses"], after["losses"]) if not relative else means), relative)
    if relative < ONLY_LOSSES:
        yield from _observed("ended", before["ended"], after["ended"], relative, of_states)
    yield from differ("rest", before["rest"], after["rest"])


def _observed(what: str, before: Any, after: Any, relative: float = 0.0, of_states: float = 0.0) -> Iterator[str]:
    yield from differ(f"{what} weights", before["weights"], after["weights"], relative)
    if before["states"] is not None:
        yield from differ(f"{what} states", before["states"], after["states"], of_states)
        yield from differ(f"{what} settings", before["settings"], after["settings"])
