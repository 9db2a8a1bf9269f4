"""The report for programs."""

from __future__ import annotations

import dataclasses
import json

from fsdp_migrate.outcome import RunResult
from fsdp_migrate.report.summary import by_level, by_rule

VERSION = 1


def render(result: RunResult) -> str:
    """The report as JSON. Lines count from 1 and columns from 0, as in :class:`fsdp_rules.finding.Finding`.

    ``summary.errors`` counts what the list ``errors`` holds. A new key does not change ``version``.
    """
    content = {
        "version": VERSION,
        "summary": {
            "files_scanned": result.scanned,
            "files_with_fsdp1": len(result.with_fsdp1),
            "files_changed": len(result.changed),
            "findings_by_rule": by_rule(result.findings),
            "findings_by_level": by_level(result.findings),
            "errors": len(result.errors),
        },
        "findings": [dataclasses.asdict(finding) for finding in result.findings],
        "errors": [{"path": path, "message": message} for path, message in result.errors],
        "skipped": [{"path": path, "message": message} for path, message in result.skipped],
    }
    return json.dumps(content, indent=2) + "\n"
