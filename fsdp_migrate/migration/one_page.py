"""The page at the end of a migration: what moved, what is equal, what it costs, what is left, and what never ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from fsdp_migrate.migration.stages import Moved
from fsdp_migrate.report.document import document, enveloped
from fsdp_migrate.report.rewrite.run_coverage import by_trace
from fsdp_migrate.report.summary import as_json, count
from fsdp_migrate.trace import seen_in_words
from fsdp_migrate.verify.report import bisect_text, verdict_json, verdict_text
from fsdp_rules.verdict.finding import Finding, Level

INSTALL = (
    "the code now imports fsdp_compat: install it on the machines that train (pip install ./shim in a clone of "
    "fsdp-migrate, or "
    "pip install 'git+URL#subdirectory=shim'), and add it to the requirements"
)


def sections(moved: Moved) -> Iterator[tuple[str, list[str]]]:
    """Each heading with its lines."""
    result = moved.result
    yield "What the run showed", list(seen_in_words.lines(moved.trace))
    yield "What moved", [f"{file.path}: {count(_moves(file.findings), 'change')}" for file in result.changed]
    yield "Comparison and cost", list(verdict_text.lines(moved.verdict))
    if moved.bisection is not None and moved.bisection.found.search is not None:
        # Where no other form was written, the verdict above is that on the rewrite as it is.
        told = bisect_text.lines if moved.bisection.moves_on else bisect_text.search_lines
        yield "Why the rewrite differed", [line for line in told(moved.bisection) if line]
    manual = [_told(finding) for finding in result.of_level(Level.MANUAL)]
    # The runs had this tool's own copy of it.
    manual += [INSTALL] * _imports_helpers(moved)
    yield "Left to do by hand", manual or ["nothing"]
    yield from assumptions(result.of_level(Level.REVIEW))
    yield "Decided by the run, and code that never ran", list(by_trace(result)) or ["no open findings"]
    seconds = ", ".join(f"{stage} in {spent:.0f} s" for stage, spent in moved.journal.seconds.items())
    yield "Time", [seconds]


def assumptions(findings: Sequence[Finding]) -> Iterator[tuple[str, list[str]]]:
    """The assumptions that no run has tested, apart from those on lines that both runs compared."""
    yield "Based on an assumption", [_told(finding) for finding in findings if not finding.ran] or ["nothing"]
    if covered := [_told(finding) for finding in findings if finding.ran]:
        yield "Assumptions on lines that ran, which the comparison above covers", covered


def _imports_helpers(moved: Moved) -> bool:
    form = moved.bisection if moved.bisection is not None and moved.bisection.moves_on else None
    other = form is not None and any(b"fsdp_compat" in one.other for one in form.files.values())
    return other or bool(moved.result.importing_helpers)


def lines(moved: Moved) -> Iterator[str]:
    """The page as text."""
    for heading, told in sections(moved):
        yield f"== {heading}"
        yield from told
        yield ""


def rendered(suffix: str, moved: Moved) -> str:
    """The page as HTML for ``.html``, for programs for ``.json``, else as text."""
    if suffix == ".json":
        return document("migrate", _as_data(moved))
    if suffix != ".html":
        return "\n".join(lines(moved)) + "\n"
    body = "".join(f"<h2>{escape(heading)}</h2><pre>{escape(_joined(told))}</pre>" for heading, told in sections(moved))
    head = f"<!doctype html><meta charset=utf-8><title>Migration to FSDP2</title>{_STYLE}"
    return f"{head}<h1>Migration to FSDP2</h1>{body}\n"


def _as_data(moved: Moved) -> dict[str, object]:
    result, bisection = moved.result, moved.bisection
    return {
        "trace": seen_in_words.as_data(moved.trace),
        "changed": [{"path": file.path, "changes": _moves(file.findings)} for file in result.changed],
        "verdict": enveloped("verify", verdict_json.as_data(moved.verdict)),
        "bisection": None if bisection is None else enveloped("verify bisect", verdict_json.bisected(bisection)),
        "manual": [as_json(finding) for finding in result.of_level(Level.MANUAL)],
        "review": [as_json(finding) for finding in result.of_level(Level.REVIEW)],
        "by_trace": list(by_trace(result)),
        "seconds": dict(moved.journal.seconds),
    }


_STYLE = (
    "<style>:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;"
    "padding:0 1rem}pre{white-space:pre-wrap;overflow-wrap:anywhere}</style>"
)


def _joined(told: list[str]) -> str:
    return "\n".join(told)


def _moves(findings: tuple[Finding, ...]) -> int:
    return sum(finding.level in (Level.SAFE, Level.REVIEW) for finding in findings)


def _told(finding: Finding) -> str:
    advice = f" ({finding.advice})" if finding.advice else ""
    return f"{finding.path}:{finding.line} {finding.rule} {finding.text}{advice}"
