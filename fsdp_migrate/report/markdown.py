"""The report for people, to be attached to a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_migrate.outcome import RunResult
from fsdp_migrate.report.summary import by_rule, paragraph, printable
from fsdp_rules.finding import Finding, Level

_SECTIONS = (
    (Level.MANUAL, "Left to do by hand"),
    (Level.REVIEW, "Rewritten, on an assumption"),
    (Level.INFO, "Worth knowing"),
)
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def render(result: RunResult) -> str:
    """The report as Markdown."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: RunResult) -> Iterator[str]:
    yield "# From FSDP1 to FSDP2"
    yield ""
    yield _escape(paragraph(result))
    if result.findings:
        names = {finding.rule: finding.name for finding in result.findings}
        yield from ("", "| Rule | Name | Findings |", "|---|---|---:|")
        for rule, number in by_rule(result.findings).items():
            yield f"| {rule} | {_escape(names[rule])} | {number} |"
    for level, title in _SECTIONS:
        findings = result.of_level(level)
        if findings:
            yield from ("", f"## {title}", "")
            yield from map(_item, findings)
    if result.changed:
        yield from ("", f"## Files that {'would be' if result.diff else 'were'} rewritten", "")
        yield from (f"- {_code(file.path)}" for file in result.changed)
    for title, pairs in (("Files that could not be done", result.errors), ("Files that were skipped", result.skipped)):
        if pairs:
            yield from ("", f"## {title}", "")
            yield from (f"- {_code(path)}: {_escape(reason)}" for path, reason in pairs)


def _item(finding: Finding) -> str:
    advice = f". What to do: {_escape(finding.advice)}" if finding.advice else ""
    return f"- {_code(f'{finding.path}:{finding.line}')} {finding.rule}: {_escape(finding.message)}{advice}"


def _code(text: str) -> str:
    text = printable(text)
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", printable(text))
