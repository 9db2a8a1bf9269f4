"""GitLab's code quality report: a list of issues, which it shows in merge requests."""

from __future__ import annotations

import hashlib
import json

from fsdp_migrate.check.checked import CheckResult, Told
from fsdp_migrate.report.check.from_root import from_root
from fsdp_migrate.report.summary import printable
from fsdp_rules.verdict.finding import Level

_SEVERITY = {Level.MANUAL: "major", Level.REVIEW: "minor", Level.SAFE: "minor", Level.INFO: "info"}


def render(result: CheckResult) -> str:
    """One issue for each finding, and one for each path that was left out or could not be checked."""
    issues = [
        *map(_issue, result.told),
        *(_path("not-checked", "info", path, reason) for path, reason in result.skipped),
        *(_path("could-not-be-checked", "critical", path, reason) for path, reason in result.errors),
    ]
    return json.dumps(issues, indent=2) + "\n"


def _issue(told: Told) -> dict[str, object]:
    finding = told.alone
    said = ". ".join(part.rstrip(".") for part in (finding.text, finding.advice) if part)
    line = 1 if told.in_checkpoint else finding.line
    return _entry(
        finding.rule, _SEVERITY[finding.level], finding.path, line, f"{finding.rule}: {said}", told.fingerprint
    )


def _path(name: str, severity: str, path: str, reason: str) -> dict[str, object]:
    return _entry(name, severity, path, 1, reason, reason)


def _entry(name: str, severity: str, path: str, line: int, said: str, key: str) -> dict[str, object]:
    path = from_root(path)
    text = "\0".join([name, path, key])
    return {
        "description": printable(said),
        "check_name": name,
        "fingerprint": hashlib.sha256(text.encode("utf-8", errors="backslashreplace")).hexdigest(),
        "severity": severity,
        "location": {"path": path.encode("utf-8", errors="backslashreplace").decode(), "lines": {"begin": line}},
    }
