"""Workflow commands of GitHub Actions, which it shows as annotations beside the lines of a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.check.checked import ORDER, CheckResult, Told
from fsdp_migrate.report.check.from_root import from_root
from fsdp_migrate.report.check.text import paragraph
from fsdp_migrate.report.summary import spelled_out
from fsdp_rules.verdict.finding import Level

_KINDS = {Level.MANUAL: "error", Level.REVIEW: "warning", Level.SAFE: "warning", Level.INFO: "notice"}


def render(result: CheckResult) -> str:
    """An ``error`` for what is left by hand, a ``warning`` for what a rewrite moves, a ``notice`` for notes.

    GitHub shows ten of a kind for each step, so what needs most attention is first.
    """
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: CheckResult) -> Iterator[str]:
    for path, reason in result.errors:
        yield _command("error", {"file": from_root(path), "title": "could not be checked"}, reason)
    for told in sorted(result.told, key=lambda one: -ORDER.index(one.finding.level)):
        finding = told.alone
        message = f"{finding.text}\n{finding.advice}" if finding.advice else finding.text
        yield _command(_KINDS[finding.level], {**_place(told), "title": f"{finding.rule} {finding.name}"}, message)
    for path, reason in result.skipped:
        yield _command("warning", {"file": from_root(path), "title": "not checked"}, reason)
    yield paragraph(result)


def _place(told: Told) -> dict[str, str]:
    finding = told.finding
    file = from_root(finding.path)
    if told.in_checkpoint:
        return {"file": file}
    place = {"file": file, "line": str(finding.line), "endLine": str(finding.end_line)}
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
