"""The report for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.report.diff import patch
from fsdp_migrate.report.document import document
from fsdp_migrate.report.half_migrated import warning
from fsdp_migrate.report.rewrite.changes import Reader
from fsdp_migrate.report.rewrite.guide import assumptions, checks
from fsdp_migrate.report.summary import as_json, by_level, by_rule


def render(result: RunResult) -> str:
    """The report as JSON. Lines and columns count from 1.

    ``summary.errors`` counts what the list ``errors`` holds. ``changes`` has the lines before and after, with the
    numbers of the findings they go with (from 0, in ``findings``); they are for reading, so that control characters
    are spelled out and very long lines cut. ``patch`` is what ``--diff`` prints, None where files were written.
    """
    content = {
        "summary": {
            "files_scanned": result.scanned,
            "files_with_fsdp1": len(result.with_fsdp1),
            "files_changed": len(result.changed),
            "findings_by_rule": by_rule(result.findings),
            "findings_by_level": by_level(result.findings),
            "errors": len(result.errors),
        },
        "torch": str(result.torch),
        "new_imports_of_fsdp_compat": [file.path for file in result.importing_helpers],
        "between_fsdp1_and_fsdp2": warning(result),
        "branches_of_both": result.both,
        "assumptions": [
            {
                "message": assumption.message,
                "advice": assumption.advice,
                "places": [{"path": place.path, "line": place.line} for place in assumption.places],
            }
            for assumption in assumptions(result)
        ],
        "what_to_test": [{"test": check.sentence, "rules": check.rules} for check in checks(result)],
        "findings": [as_json(finding) for finding in result.findings],
        "changes": list(_changes(result)),
        "patch": b"".join(patch(result, Path.cwd())).decode("utf-8", "backslashreplace") if result.diff else None,
        "errors": [{"path": path, "message": message} for path, message in result.errors],
        "skipped": [{"path": path, "message": message} for path, message in result.skipped],
    }
    return document("rewrite", content)


def _changes(result: RunResult) -> Iterator[dict[str, object]]:
    numbers = {id(finding): number for number, finding in enumerate(result.findings)}
    for file in result.with_fsdp1:
        for change in Reader(file, result.diff).changes():
            if change.hunk is not None:
                yield {
                    "path": file.path,
                    "findings": [numbers[id(finding)] for finding in change.findings],
                    "rules": sorted({finding.rule for finding in change.findings}),
                    "before_line": change.hunk.before_line,
                    "before": change.hunk.before,
                    "after_line": change.hunk.after_line,
                    "after": change.hunk.after,
                }
