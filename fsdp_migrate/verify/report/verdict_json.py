"""The verdict as JSON, for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fsdp_migrate.report.diff import unified
from fsdp_migrate.report.document import document, enveloped
from fsdp_migrate.report.summary import as_json
from fsdp_migrate.verify.bisect.bisecting import Bisection
from fsdp_migrate.verify.compare.difference import Difference
from fsdp_migrate.verify.report.facts import headline, place, side, spread
from fsdp_migrate.verify.verdict import Verdict

_ANSWERS = {0: "equal", 1: "different"}


def render(verdict: Verdict) -> str:
    """One object: ``verdict``, ``headline``, ``first``, ``cause``, ``alone``, ``questions``, ``losses``, ``cost``, …"""
    return document("verify", as_data(verdict))


def rendered(bisection: Bisection, written: Sequence[str] = (), verified: Verdict | None = None) -> str:
    """A search for the edits that make the runs differ: ``edits`` that were found, and the ``patch`` of their form.

    ``written``: the files that got it, and ``verified`` the verdict on them.
    """
    return document("verify bisect", bisected(bisection, written, verified))


def bisected(bisection: Bisection, written: Sequence[str] = (), verified: Verdict | None = None) -> dict[str, Any]:
    """What :func:`rendered` prints, after the names of its format and version."""
    found, search = bisection.found, bisection.found.search
    patches = (unified(path, one.native, one.other) for path, one in bisection.files.items() if found.edits)
    return {
        "verdict": _whole(found.native.verdict),
        "failure": found.native.said if found.native.verdict is None else None,
        "fails_at": None if found.crash is None else {"place": found.crash[0], "finding": as_json(found.crash[1])},
        "runs": search.runs if search is not None else 0,
        "is_smallest": search.is_smallest if search is not None else None,
        "edits": [as_json(edit.finding) for edit in found.edits],
        "patch": b"".join(line for lines in patches for line in lines).decode("utf-8", "backslashreplace"),
        "repeats": bisection.repeats,
        "notes": list(bisection.notes),
        "written": list(written),
        "verified": _whole(verified),
    }


def _whole(verdict: Verdict | None) -> dict[str, Any] | None:
    return None if verdict is None else enveloped("verify", as_data(verdict))


def as_data(verdict: Verdict) -> dict[str, Any]:
    """What :func:`render` prints, after the names of its format and version."""
    comparison = verdict.comparison
    return {
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
