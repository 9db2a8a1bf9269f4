"""Runs a parity program as FSDP1 and as what the rewriter makes of it, and compares."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Level
from tests.parity.compare import differences
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.programs import Program
from tests.parity.tolerance import EXACT, tolerance
from tests.parity.trees import rewrite_tree
from tests.pool import Pool, WorkerError

#: The file of a program that is run.
SCRIPT = "train.py"
#: The function that shards with FSDP1's arguments.
HELPER = re.compile(r"\bfsdp_compat\.shard\b")


class Verdict(enum.Enum):
    """How a program came out."""

    EQUAL = "equal"
    CLOSE = "equal within a tolerance"
    MANUAL = "left to a human"
    DIFFERENT = "different"
    FAILED = "failed"

    @property
    def good(self) -> bool:
        """Whether nothing went wrong in silence."""
        return self in (Verdict.EQUAL, Verdict.CLOSE, Verdict.MANUAL)


@dataclass(frozen=True)
class Outcome:
    """The verdict on one program, and why; ``form`` is what wraps its models: fully_shard alone, or a helper."""

    program: Program
    verdict: Verdict
    detail: str
    form: str = ""

    @property
    def brief(self) -> str:
        """The detail in one line: of a traceback, the error."""
        lines = self.detail.splitlines() or [""]
        return next((line for line in lines if re.match(r"[\w.]*Error\b", line)), lines[0])


class NotRewrittenError(Exception):
    """The rewriter left the program, or a part of it, as it was; the message says why."""


def rewritten(source: str, settings: Settings) -> str:
    """What the rewriter makes of ``source`` alone.

    :raises NotRewrittenError: a finding is left to a human.
    :raises RuntimeError: the rewriter failed.
    """
    return rewritten_files({SCRIPT: source}, settings)[SCRIPT]


def rewritten_files(files: Mapping[str, str], settings: Settings) -> Mapping[str, str]:
    """What the rewriter makes of a program of several ``files``; raises as :func:`rewritten` does."""
    after = rewrite_tree(files, settings)
    manual = [f"{found.rule}: {found.message}" for found in after.findings if found.level is Level.MANUAL]
    if manual or after.files == files:
        raise NotRewrittenError("; ".join(dict.fromkeys(manual)) or "nothing to rewrite was found")
    return after.files


def files_of(program: Program) -> dict[str, str]:
    """Every file of ``program`` by its path."""
    return {SCRIPT: program.source, **program.others}


def run(pool: Pool, program: Program, source: str | Mapping[str, str], directory: Path, *, fsdp1: bool) -> Any:
    """What ``source``, some version of ``program`` or of all its files, saves when it is trained."""
    import torch

    written = {SCRIPT: source, **program.others} if isinstance(source, str) else source
    saved = directory / "result.pt"
    saved.unlink(missing_ok=True)
    for path, text in written.items():
        (directory / path).write_text(text)
    prelude = fsdp1_on_cpu if fsdp1 else None
    pool.run_script(directory / SCRIPT, program.world_size, [str(saved)], prelude=prelude)
    return torch.load(saved, weights_only=True)


def check(pool: Pool, program: Program, directory: Path, settings: Settings) -> Outcome:
    """Train ``program`` before and after a rewrite under ``settings``; ``directory`` is empty and its own."""
    try:
        after_files = rewritten_files(files_of(program), settings)
    except NotRewrittenError as reason:
        return Outcome(program, Verdict.MANUAL, str(reason))
    except Exception as error:
        return Outcome(program, Verdict.FAILED, f"the rewriter raised {error!r}")
    try:
        before = run(pool, program, program.source, directory, fsdp1=True)
        after = run(pool, program, after_files, directory, fsdp1=False)
    except WorkerError as error:
        return Outcome(program, Verdict.FAILED, str(error))
    return replace(judge(program, before, after), form=form_of(after_files))


def form_of(files: Mapping[str, str]) -> str:
    """What wraps the models of a rewritten program: a helper, or fully_shard alone."""
    return "helper" if any(HELPER.search(text) for text in files.values()) else "native"


def judge(program: Program, before: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
    """Compare what two versions of ``program`` saved."""
    allowed = tolerance(program.spec)
    if program.spec["precision"] == "bf16":
        before, after = ({**result, "weights": _wide(result["weights"])} for result in (before, after))
    if different := differences(before, after, allowed):
        return Outcome(program, Verdict.DIFFERENT, "; ".join(different[:4]))
    return Outcome(program, Verdict.EQUAL if allowed is EXACT else Verdict.CLOSE, allowed.reason)


def _wide(weights: Mapping[str, Any]) -> dict[str, Any]:
    """``weights`` with what is in bf16, which only a buffer is after training in mixed precision, in fp32."""
    import torch

    return {name: value.float() if value.dtype is torch.bfloat16 else value for name, value in weights.items()}
