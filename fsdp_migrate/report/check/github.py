"""Workflow commands of GitHub Actions, which it shows as annotations beside the lines of a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.check.checked import CheckResult, Told
from fsdp_migrate.report.check.text import paragraph
from fsdp_migrate.report.summary import spelled_out


def render(result: CheckResult) -> str:
    """An ``error`` for what fails the check, a ``notice`` for notes, a ``warning`` for what was left out."""
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: CheckResult) -> Iterator[str]:
    for told in result.told:
        finding = told.alone
        message = f"{finding.text}\n{finding.advice}" if finding.advice else finding.text
        kind = "error" if told.fails else "notice"
        yield _command(kind, {**_place(told), "title": f"{finding.rule} {finding.name}"}, message)
    for path, reason in result.skipped:
        yield _command("warning", {"file": path, "title": "not checked"}, reason)
    for path, reason in result.errors:
        yield _command("error", {"file": path, "title": "could not be checked"}, reason)
    yield paragraph(result)


def _place(told: Told) -> dict[str, str]:
    finding = told.finding
    if told.in_checkpoint:
        return {"file": finding.path}
    place = {"file": finding.path, "line": str(finding.line), "endLine": str(finding.end_line)}
    if finding.line == finding.end_line:
        # GitHub takes columns for ranges within one line only.
        place |= {"col": str(finding.column + 1), "endColumn": str(finding.end_column + 1)}
    return place


def _command(kind: str, properties: dict[str, str], message: str) -> str:
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{kind} {listed}::{_data(message)}"


def _data(text: str) -> str:
    lines = [spelled_out(line) for line in text.split("\n")]
    return "%0A".join(line.replace("%", "%25") for line in lines)


def _property(text: str) -> str:
    return spelled_out(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
