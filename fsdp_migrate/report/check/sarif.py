"""SARIF 2.1.0, which code scanning services read: the findings, and of each rule in them what it is about."""

from __future__ import annotations

import inspect
import json
import os
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from fsdp_migrate.check.checked import CheckResult, Told, exit_code
from fsdp_migrate.report.rulebook import Page, explanation, pages
from fsdp_migrate.report.summary import printable
from fsdp_rules.verdict.finding import Level

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Level.MANUAL: "error", Level.REVIEW: "warning", Level.SAFE: "warning", Level.INFO: "note"}


def render(result: CheckResult) -> str:
    """The result as one run. Files under the working directory are named from there, as code scanning expects."""
    ids = sorted({told.finding.rule for told in result.told})
    known = {page.id: page for page in pages()}
    run = {
        "tool": {
            "driver": {
                "name": "fsdp-migrate",
                "version": version("fsdp-migrate"),
                "rules": [_rule(known[rule]) for rule in ids],
            }
        },
        "columnKind": "unicodeCodePoints",
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
    }


def _notification(level: str, path: str, reason: str) -> dict[str, Any]:
    location = {"physicalLocation": {"artifactLocation": _artifact(path)}}
    return {"level": level, "message": {"text": printable(reason)}, "locations": [location]}


def _artifact(path: str) -> dict[str, str]:
    return artifact(Path(os.path.normpath(Path.cwd() / path)), Path.cwd())


def artifact(file: PurePath, base: PurePath) -> dict[str, str]:
    """How SARIF names a file: from ``base`` where it is below it, else as a whole."""
    if file.is_relative_to(base):
        return {"uri": quote(os.fsencode(file.relative_to(base).as_posix())), "uriBaseId": "%SRCROOT%"}
    return {"uri": file.as_uri()}
