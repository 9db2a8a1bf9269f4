"""The report as one page for a browser: it loads nothing, and whatever stands in the user's code is text there.

Two walls stand between the code that is quoted and the reader's browser: Jinja's escaping, and a policy in the page
that lets run the one script whose hash it names, and load nothing at all.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.report.rewrite.changes import Change, Hunk, Reader
from fsdp_migrate.report.rewrite.colours import coloured
from fsdp_migrate.report.rewrite.guide import MEANINGS, assumptions, checks, next_steps
from fsdp_migrate.report.rulebook import Page, pages
from fsdp_migrate.report.shorten import Rest, shortened
from fsdp_migrate.report.summary import by_level, by_rule, count, paragraph, printable
from fsdp_migrate.report.what_to_test import what_to_test
from fsdp_rules.verdict.finding import Finding, Level

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
        """What needs most attention first, then by line."""
        found = [Change(tuple(sorted(one.findings, key=_urgency)), one.hunk) for one in self._reader.changes()]
        return sorted(found, key=lambda change: _urgency(change.findings[0])[0])

    @property
    def whole(self) -> Iterator[tuple[int, Hunk]]:
        """Every hunk, with the number of unchanged lines before it that are not shown."""
        end = 1
        for hunk in self._reader.whole():
            yield hunk.before_line - end, hunk
            end = hunk.before_line + len(hunk.before)

    def bar(self, most: int) -> Iterator[tuple[str, float, float]]:
        """Level, start and width of each part of a bar of 100, where ``most`` findings fill it."""
        start = 0.0
        for level, number in self.levels.items():
            if number:
                width = round(100 * number / most, 2)
                yield level, round(start, 2), width
                start += width


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


@dataclass(frozen=True)
class _Run:
    """Lines of one kind: the element that says which, their numbers before and after, and their text."""

    kind: str
    old: str
    new: str
    text: str


def render(result: RunResult, about: Sequence[tuple[str, str]] = ()) -> str:
    """The report as a page of HTML that needs no other file and no network.

    ``about`` are names and values of the run: project, commit, date, version, command.
    """
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
        coloured=coloured,
        markdown=lambda text: Markup(markdown.render(text)),
        sentence=lambda text: Markup(markdown.renderInline(text)),
    )
    numbers: dict[tuple[object, ...], int] = {}
    for number, finding in enumerate(result.findings):
        numbers.setdefault(_place(finding), number)
    files = [_File(file, result.diff) for file in result.with_fsdp1]
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
        about=about,
        by_hand=list(_by_hand(result)),
        files=files,
        most=max((file.total for file in files), default=1) or 1,
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


def _urgency(finding: Finding) -> tuple[int, int]:
    return list(MEANINGS).index(finding.level), finding.line


def _by_hand(result: RunResult) -> Iterator[tuple[Finding, str]]:
    """What is left to do by hand, each with a key that stays the same as long as the finding does."""
    seen: Counter[str] = Counter()
    for finding in shortened(result.of_level(Level.MANUAL))[0]:
        text = "\0".join([finding.path, finding.rule, finding.message])
        key = hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]
        seen[key] += 1
        yield finding, f"{key}-{seen[key]}"


def _runs(hunk: Hunk, longest: int | None = None) -> Iterator[_Run]:
    """The lines of a hunk, those of one kind together, each with the element that says its kind."""
    old, new = hunk.before_line, hunk.after_line
    for kind, together in groupby(hunk.lines[:longest], key=lambda line: line[0]):
        lines = list(together)
        is_old, is_new = kind != "+", kind != "-"
        yield _Run(
            _KINDS[kind],
            "\n".join(map(str, range(old, old + len(lines)))) if is_old else "",
            "\n".join(map(str, range(new, new + len(lines)))) if is_new else "",
            "\n".join(lines),
        )
        old += len(lines) * is_old
        new += len(lines) * is_new


def _part(name: str) -> str:
    return (resources.files("fsdp_migrate.report") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a content security policy names an inline part."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
