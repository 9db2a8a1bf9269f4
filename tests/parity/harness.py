"""Runs a parity program as FSDP1 and as what the rewriter makes of it, and compares."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fsdp_rules.engine.rewrite import rewrite_source
from fsdp_rules.project.project import Project, index_source
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Failed, Skipped
from tests.parity.compare import differences
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.programs import Program
from tests.parity.tolerance import EXACT, tolerance
from tests.pool import Pool, WorkerError

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
    """What the rewriter makes of ``source``.

    :raises NotRewrittenError: a finding is left to a human.
    :raises RuntimeError: the rewriter failed.
    """
    data = source.encode()
    facts = index_source("train.py", data)
    result = rewrite_source(data, "train.py", Project.build([facts] if facts else []), settings)
    if isinstance(result, Failed | Skipped):
        raise RuntimeError(result.error if isinstance(result, Failed) else f"skipped: {result.reason}")
    manual = [f"{found.rule}: {found.message}" for found in result.findings if found.level is Level.MANUAL]
    if manual or not isinstance(result, Changed):
        raise NotRewrittenError("; ".join(dict.fromkeys(manual)) or "nothing to rewrite was found")
    return result.source.decode()


def run(pool: Pool, program: Program, source: str, directory: Path, *, fsdp1: bool) -> Mapping[str, Any]:
    """What ``source``, some version of ``program``, saves when it is trained."""
    import torch

    script, saved = directory / "train.py", directory / "result.pt"
    saved.unlink(missing_ok=True)
    script.write_text(source)
    prelude = fsdp1_on_cpu if fsdp1 else None
    pool.run_script(script, program.world_size, [str(saved)], prelude=prelude)
    result: Mapping[str, Any] = torch.load(saved, weights_only=True)
    return result


def check(pool: Pool, program: Program, directory: Path, settings: Settings) -> Outcome:
    """Train ``program`` before and after a rewrite under ``settings``; ``directory`` is empty and its own."""
    try:
        after_source = rewritten(program.source, settings)
    except NotRewrittenError as reason:
        return Outcome(program, Verdict.MANUAL, str(reason))
    except Exception as error:
        return Outcome(program, Verdict.FAILED, f"the rewriter raised {error!r}")
    try:
        before = run(pool, program, program.source, directory, fsdp1=True)
        after = run(pool, program, after_source, directory, fsdp1=False)
    except WorkerError as error:
        return Outcome(program, Verdict.FAILED, str(error))
    form = "helper" if HELPER.search(after_source) else "native"
    return replace(judge(program, before, after), form=form)


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
