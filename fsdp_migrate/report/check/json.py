"""For programs."""

from __future__ import annotations

from fsdp_migrate.check.checked import CheckResult, exit_code
from fsdp_migrate.report.document import document
from fsdp_migrate.report.summary import as_json, by_level, by_rule


def render(result: CheckResult) -> str:
    """All that a check says, as JSON. Lines and columns count from 1.

    ``fails``: at or above the level. ``kind`` is ``source`` or ``checkpoint``; of the latter line and column mean
    nothing. ``fingerprint`` stays where the code around a finding moves.
    """
    findings = [told.finding for told in result.told]
    content = {
        "exit_code": exit_code(result),
        "summary": {
            "sources": result.sources,
            "checkpoints": result.checkpoints,
            "min_level": result.min_level.value,
            "failing": len(result.failing),
            "below_level": result.below,
            "in_baseline": result.known,
            "findings_by_rule": by_rule(findings),
            "findings_by_level": by_level(findings),
        },
        "branches_of_both": result.both,
        "findings": [
            {
                **as_json(told.alone),
                "fails": told.fails,
                "kind": "checkpoint" if told.in_checkpoint else "source",
                "fingerprint": told.fingerprint,
            }
            for told in result.told
        ],
        "errors": [{"path": path, "message": message} for path, message in result.errors],
        "skipped": [{"path": path, "message": message} for path, message in result.skipped],
    }
    return document("check", content)
