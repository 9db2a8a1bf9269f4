"""SARIF 2.1.0, which code scanning services read: the findings, and of each rule in them what it is about."""

from __future__ import annotations

import inspect
import json
import os
from importlib.metadata import version
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from fsdp_migrate.check.checked import CheckResult, Told, exit_code
from fsdp_migrate.pipeline.hunks import Hunk
from fsdp_migrate.report.check.from_root import root, whole
from fsdp_migrate.report.offline import address, home
from fsdp_migrate.report.rulebook import Page, explanation, pages
from fsdp_migrate.report.summary import printable
from fsdp_rules.verdict.finding import Level

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: What the first digit of a rule says that it is about.
_SUBJECTS = {
    "1": "construction",
    "2": "training-loop",
    "3": "state-dict",
    "4": "checkpoint",
    "5": "configuration",
    "6": "proof",
}
_LEVELS = {Level.MANUAL: "error", Level.REVIEW: "warning", Level.SAFE: "warning", Level.INFO: "note"}


def render(result: CheckResult) -> str:
    """The result as one run. Files are named from the root of the repository, as code scanning expects."""
    ids = sorted({told.finding.rule for told in result.told})
    known = {page.id: page for page in pages()}
    run = {
        "tool": {
            "driver": {
                "name": "fsdp-migrate",
                "version": version("fsdp-migrate"),
                **({"informationUri": home()} if home() else {}),
                "rules": [_rule(known[rule]) for rule in ids],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"%SRCROOT%": {"uri": f"{root().as_uri().rstrip('/')}/"}},
        "invocations": [
            {
                "executionSuccessful": not result.errors,
                "exitCode": exit_code(result),
                "toolExecutionNotifications": [
                    *(_notification("error", path, reason) for path, reason in result.errors),
                    *(_notification("note", path, f"skipped: {reason}") for path, reason in result.skipped),
                ],
            }
        ],
        "results": [_result(told, ids.index(told.finding.rule)) for told in result.told],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(page: Page) -> dict[str, Any]:
    text = inspect.cleandoc(page.doc)
    return {
        "id": page.id,
        "name": "".join(part.capitalize() for part in page.name.split("-")),
        "shortDescription": {"text": f"{page.first_sentence}."},
        "fullDescription": {"text": text},
        "help": {"text": text, "markdown": "\n".join(explanation(page))},
        **({"helpUri": link} if (link := address(page)) else {}),
        "defaultConfiguration": {"level": "error" if page.id.startswith("FSDP4") else "warning"},
        "properties": {"tags": ["pytorch", "fsdp", _SUBJECTS.get(page.id[4:5], "other")]},
    }


def _result(told: Told, index: int) -> dict[str, Any]:
    finding = told.alone
    place: dict[str, Any] = {"artifactLocation": _artifact(finding.path)}
    if not told.in_checkpoint:
        place["region"] = {
            "startLine": finding.line,
            "startColumn": finding.column + 1,
            "endLine": finding.end_line,
            "endColumn": finding.end_column + 1,
        }
    message = ". ".join(part.rstrip(".") for part in (finding.text, finding.advice) if part)
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.level],
        "message": {"text": f"{printable(message)}."},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"fsdpMigrate/v1": told.fingerprint},
        "properties": {"level": finding.level.value, "fails": told.fails},
        **({"fixes": [fix]} if (fix := _fix(told)) else {}),
    }


def _fix(told: Told) -> dict[str, Any] | None:
    """The edits of a rewrite on these lines; they may need those of the other findings in the file."""
    try:
        replacements = [
            {
                "deletedRegion": {"startLine": hunk.start + 1, "startColumn": 1, "endLine": hunk.end, "endColumn": end},
                "insertedContent": {"text": text},
            }
            for hunk in told.fix
            for end, text in [_whole_lines(hunk)]
        ]
    except UnicodeDecodeError:
        return None
    if not replacements:
        return None
    change = {"artifactLocation": _artifact(told.finding.path), "replacements": replacements}
    return {"description": {"text": "What fsdp-migrate rewrite would change here."}, "artifactChanges": [change]}


def _whole_lines(hunk: Hunk) -> tuple[int, str]:
    """The column after the last old line, and the new lines; the end of the last line is kept as it is."""
    last = hunk.old[-1].decode("utf-8").rstrip("\r\n") if hunk.old else ""
    text = b"".join(hunk.new).decode("utf-8")
    kept = hunk.old[-1].decode("utf-8")[len(last) :] if hunk.old else ""
    return len(last) + 1, text.removesuffix(kept) if kept else text


def _notification(level: str, path: str, reason: str) -> dict[str, Any]:
    location = {"physicalLocation": {"artifactLocation": _artifact(path)}}
    return {"level": level, "message": {"text": printable(reason)}, "locations": [location]}


def _artifact(path: str) -> dict[str, str]:
    return artifact(whole(path), root())


def artifact(file: PurePath, base: PurePath) -> dict[str, str]:
    """How SARIF names a file: from ``base`` where it is below it, else as a whole."""
    if file.is_relative_to(base):
        return {"uri": quote(os.fsencode(file.relative_to(base).as_posix())), "uriBaseId": "%SRCROOT%"}
    return {"uri": file.as_uri()}
