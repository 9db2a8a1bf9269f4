"""The verdict as JSON, for programs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from fsdp_migrate.verify.compare.difference import Difference
from fsdp_migrate.verify.report.facts import headline, place, side, spread
from fsdp_migrate.verify.verdict import Verdict

_ANSWERS = {0: "equal", 1: "different"}


def render(verdict: Verdict) -> str:
    """One object: ``verdict``, ``headline``, ``first``, ``cause``, ``alone``, ``questions``, ``losses``, ``cost``, …"""
    comparison = verdict.comparison
    answer: dict[str, Any] = {
        "format": "fsdp-migrate verify",
        "version": 1,
        "verdict": _ANSWERS[verdict.exit_code],
        "headline": headline(verdict),
        "steps": verdict.steps,
        "ranks": [comparison.before.world, comparison.after.world],
        "first": None if verdict.first is None else _difference(verdict, verdict.first),
        "cause": None if verdict.cause is None else asdict(verdict.cause),
        "earliest": [_difference(verdict, difference) for difference in verdict.firsts],
        "alone": None if verdict.alone is None else [_difference(verdict, difference) for difference in verdict.alone],
        "questions": [row._asdict() for row in spread(verdict)],
        "losses": {"before": comparison.before.losses(0), "after": comparison.after.losses(0)},
        "cost": {"before": asdict(side(comparison.before)), "after": asdict(side(comparison.after))},
        "written": asdict(verdict.written),
        "notes": list(verdict.notes),
    }
    return json.dumps(answer, indent=2) + "\n"


def _difference(verdict: Verdict, difference: Difference) -> dict[str, Any]:
    gap = difference.gap
    return {
        "place": place(verdict, difference),
        "question": difference.question.text,
        "step": difference.step,
        "rank": difference.rank,
        "optimizer": difference.optimizer,
        "name": difference.name.partition(":")[2] or difference.name,
        "what": difference.what,
        "before": difference.before,
        "after": difference.after,
        "relative": gap.relative if gap is not None and math.isfinite(gap.relative) else None,
        "ulps": None if gap is None else gap.ulps,
        "ratio": None if gap is None else gap.ratio,
    }
