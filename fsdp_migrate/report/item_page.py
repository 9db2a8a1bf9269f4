"""One item of a migration with all that a person or a program needs to do it, in a bounded number of tokens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fsdp_migrate.check.items import Item
from fsdp_migrate.report.document import document
from fsdp_migrate.report.rulebook import Page
from fsdp_migrate.report.summary import count, printable
from fsdp_migrate.report.what_to_test import what_to_test

#: A token of source or English has three bytes or more.
BYTES = 6000
#: The most lines around the place, the most characters of each text, and whether the rule's example is shown: the
#: first that fits.
_DETAILS = ((12, 2400, True), (8, 1500, True), (6, 900, True), (6, 900, False), (3, 400, False), (1, 160, False))
_LONGEST_LINE = 160


@dataclass(frozen=True)
class Left:
    """What is left: the ``number`` of items, and of findings and files that a rewrite would do, with its command."""

    number: int
    findings: int
    files: int
    rewrite: str


def as_json(item: Item | None, left: Left, page: Page | None, sources: Mapping[str, bytes]) -> str:
    """The item for programs, at most :data:`BYTES` long; ``sources`` has the files by the paths of findings."""
    text = ""
    for lines, characters, example in _DETAILS:
        content = _content(item, page, sources, lines, characters, example) if item and page else None
        text = document("next", {**_left(left), "item": content}, indent=1, ensure_ascii=False)
        if len(text.encode("utf-8", "backslashreplace")) <= BYTES:
            break
    return text


def lines(item: Item | None, left: Left, page: Page | None, sources: Mapping[str, bytes]) -> list[str]:
    """The item for people, at most :data:`BYTES` long."""
    if item is None or page is None:
        return [*_rewrite(left)] or ["Nothing is left to do. Next: fsdp-migrate verify -- COMMAND"]
    text: list[str] = []
    for around, characters, example in _DETAILS:
        text = [*_text(_content(item, page, sources, around, characters, example), left)]
        if len("\n".join(text).encode("utf-8", "backslashreplace")) <= BYTES:
            break
    return text


def _left(left: Left) -> dict[str, Any]:
    moved = {"findings": left.findings, "files": left.files, "command": left.rewrite} if left.findings else None
    return {"open": left.number, "rewrite": moved}


def _rewrite(left: Left) -> Iterator[str]:
    if left.findings:
        has = "has" if left.files == 1 else "have"
        yield (
            f"{count(left.files, 'file')} {has} FSDP1 code that a rewrite moves "
            f"({count(left.findings, 'finding')}). Next: {printable(left.rewrite)}"
        )


def _content(
    item: Item, page: Page, sources: Mapping[str, bytes], around: int, characters: int, example: bool
) -> dict[str, Any]:
    finding = item.told.finding
    wrapped = None
    if finding.wrap:
        path, line = finding.wrap
        wrapped = {"path": path, "line": line, "source": _source(sources.get(path, b""), line, line, 1)}
    return {
        "id": item.id,
        "rule": finding.rule,
        "name": finding.name,
        "level": finding.level.value,
        "path": finding.path,
        "line": finding.line,
        "message": _cut(finding.message, characters),
        "advice": _cut(finding.advice, characters),
        "source": _source(sources.get(finding.path, b""), finding.line, finding.end_line, around),
        "wrapped": wrapped,
        "about": _cut(inspect.cleandoc(page.doc), characters),
        "before": page.before.strip("\n") if example else "",
        "after": page.after.strip("\n") if example else "",
        "explain": f"fsdp-migrate explain {finding.rule}",
        "test": _cut(what_to_test(finding.rule), characters),
        "done": f"fsdp-migrate done {item.id}",
    }


def _source(source: bytes, line: int, end: int, around: int) -> list[str]:
    """Lines of a file with their numbers; those from ``line`` to ``end`` have a mark."""
    known = source.decode("utf-8", errors="replace").split("\n")
    last = min(end, line + 2 * around)
    numbers = range(max(line - around, 1), min(last + around, len(known)) + 1)
    return [
        f"{'>' if line <= number <= last else ' '}{number:>5} {_cut(known[number - 1].rstrip(), _LONGEST_LINE)}"
        for number in numbers
        if any(known)
    ]


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


def _text(content: Mapping[str, Any], left: Left) -> Iterator[str]:
    place = f"{content['path']}:{content['line']}"
    yield printable(f"{content['id']}  {content['level']}  {place}  (1 of {left.number} open)")
    yield f"  {printable(content['message'])}"
    if content["advice"]:
        yield f"  What to do: {printable(content['advice'])}"
    if content["source"]:
        yield from ("", *map(printable, content["source"]))
    if content["wrapped"]:
        yield from (
            "",
            printable(f"The model is wrapped in {content['wrapped']['path']}:{content['wrapped']['line']}:"),
        )
        yield from map(printable, content["wrapped"]["source"])
    yield from ("", f"{content['rule']} {content['name']}")
    yield from content["about"].split("\n")
    for title in ("before", "after"):
        if content[title]:
            yield from ("", f"Example, {title}:", "", *(f"    {line}" for line in content[title].split("\n")))
    yield from ("", f"To test: {content['test']}", f"Done when this exits 0: {content['done']}")
    if left.findings:
        yield from _rewrite(left)
