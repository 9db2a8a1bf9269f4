"""The report as one page for a browser: it loads nothing, and whatever stands in the user's code is text there.

Two walls stand between the code that is quoted and the reader's browser: Jinja's escaping, and a policy in the page
that lets run the one script whose hash it names, and load nothing at all.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.report.rewrite.changes import Change, Hunk, Reader
from fsdp_migrate.report.rewrite.guide import MEANINGS, assumptions, checks, next_steps
from fsdp_migrate.report.rulebook import Page, pages
from fsdp_migrate.report.shorten import Rest, shortened
from fsdp_migrate.report.summary import by_level, by_rule, count, paragraph, printable
from fsdp_migrate.report.what_to_test import what_to_test
from fsdp_rules.verdict.finding import Finding

#: Lines of a change that are shown beside its findings; the whole diff of the file has them all.
LONGEST_HUNK = 200
_KINDS = {" ": "span", "-": "del", "+": "ins"}


@dataclass(frozen=True)
class _File:
    """One file as the template sees it."""

    outcome: FileOutcome
    diff: bool

    @property
    def path(self) -> str:
        return self.outcome.path

    @property
    def total(self) -> int:
        return len(self.outcome.findings)

    @property
    def levels(self) -> dict[str, int]:
        return _levels(list(self.outcome.findings))

    @cached_property
    def _shortened(self) -> tuple[list[Finding], list[Rest]]:
        return shortened(self.outcome.findings)

    @property
    def rest(self) -> list[Rest]:
        return self._shortened[1]

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self.outcome, self.diff, self._shortened[0])

    @property
    def changes(self) -> list[Change]:
        return self._reader.changes()

    @property
    def whole(self) -> list[Hunk]:
        return self._reader.whole()


@dataclass(frozen=True)
class _Rule:
    """One rule that was seen; ``page`` explains it."""

    id: str
    name: str
    levels: dict[str, int]
    page: Page | None

    @property
    def check(self) -> str:
        return what_to_test(self.id)


def render(result: RunResult) -> str:
    """The report as a page of HTML that needs no other file and no network."""
    environment = Environment(
        loader=PackageLoader("fsdp_migrate.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    environment.filters.update(
        count=count,
        shown=printable,
        runs=_runs,
        markdown=lambda text: Markup(markdown.render(text)),
        sentence=lambda text: Markup(markdown.renderInline(text)),
    )
    numbers: dict[tuple[object, ...], int] = {}
    for number, finding in enumerate(result.findings):
        numbers.setdefault(_place(finding), number)
    style, script = _part("style.css"), _part("filter.js")
    return environment.get_template("report.html").render(
        result=result,
        paragraph=paragraph(result),
        steps=next_steps(result),
        checks=checks(result),
        assumptions=assumptions(result),
        levels=_levels(result.findings),
        meanings={level.value: meaning for level, meaning in MEANINGS.items()},
        rules=list(_rules(result)),
        files=[_File(file, result.diff) for file in result.with_fsdp1],
        anchor=lambda finding: f"finding-{numbers[_place(finding)]}",
        longest_hunk=LONGEST_HUNK,
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _place(finding: Finding) -> tuple[object, ...]:
    """What findings that are shown as one entry have in common."""
    return finding.path, finding.line, finding.rule, finding.level


def _levels(findings: list[Finding]) -> dict[str, int]:
    """Counts by level, the one that needs most attention first."""
    counts = by_level(findings)
    return {level.value: counts[level.value] for level in MEANINGS}


def _rules(result: RunResult) -> Iterator[_Rule]:
    known = {page.id: page for page in pages()}
    names = {finding.rule: finding.name for finding in result.findings}
    counts = Counter((finding.rule, finding.level) for finding in result.findings)
    for rule in by_rule(result.findings):
        levels = {level.value: counts[rule, level] for level in MEANINGS}
        yield _Rule(rule, names[rule], levels, known.get(rule))


def _runs(hunk: Hunk, longest: int | None = None) -> Iterator[tuple[str, str]]:
    """The lines of a hunk, those of one kind together, each with the element that says its kind."""
    for mark, lines in groupby(hunk.lines[:longest], key=lambda line: line[0]):
        yield _KINDS[mark], "\n".join(lines)


def _part(name: str) -> str:
    return (resources.files("fsdp_migrate.report") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a content security policy names an inline part."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
