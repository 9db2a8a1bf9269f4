"""The comments of this command in sources: places that a rewrite left to be done by hand, and rules silenced there."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping

from fsdp_migrate.pipeline.outcome import FileOutcome
from fsdp_rules.verdict.finding import Finding, Level

#: What the message of a TODO that nobody did begins with.
LEFT = "left to do by hand: "
_IGNORE = re.compile(r"#\s*fsdp-migrate:\s*ignore\[([^\]]*)\]?")
_TODO = re.compile(r"#\s*TODO\(fsdp-migrate (?P<rule>\w+)\):\s*(?P<text>.*)")
#: How a further line of such a comment begins, in a file or in a cell of a notebook.
_FURTHER = re.compile(r'[\s"]*#     (?=\S)')
#: How a line of a cell ends in the JSON of a notebook.
_CELL_END = re.compile(r'(\\n)?",?$')


def unknown_names(source: bytes, is_python: bool, known: Collection[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each rule that an ``ignore`` comment of a source names and that is not in ``known``."""
    for line, _, text in _comments(source) if is_python else _lines(source):
        found = _IGNORE.search(text)
        for name in found[1].split(",") if found else ():
            if name.strip() and name.strip() not in known:
                yield line, name.strip()


def todos(file: FileOutcome, is_python: bool, names: Mapping[str, str]) -> Iterator[Finding]:
    """A finding for each TODO that a rewrite left and nobody did, but for those that ``file`` has a finding for.

    ``names`` are the names of the rules by id; other TODOs are not ours.
    """
    said = {(finding.rule, " ".join(finding.message.split())) for finding in file.findings}
    for line, column, text in _joined(_comments(file.before) if is_python else _lines(file.before)):
        found = _TODO.search(text)
        if found is None or found["rule"] not in names or (found["rule"], found["text"].strip()) in said:
            continue
        start = column + found.start()
        yield Finding(
            rule=found["rule"],
            name=names[found["rule"]],
            path=file.path,
            line=line,
            column=start,
            end_line=line,
            end_column=start + len(found[0]),
            level=Level.MANUAL,
            message=f"{LEFT}{found['text'].strip()}",
            advice="fix it, then remove the comment",
        )


def _joined(comments: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """``comments`` with the further lines of a TODO in its own text."""
    last: tuple[int, int, str] | None = None
    lines = 0
    for line, column, text in comments:
        further = _FURTHER.match(text)
        if last is not None and further is not None and _TODO.search(last[2]) and line == last[0] + lines:
            last = (last[0], last[1], f"{last[2].rstrip()} {text[further.end() :]}")
            lines += 1
            continue
        if last is not None:
            yield last
        last, lines = (line, column, text), 1
    if last is not None:
        yield last


def _comments(source: bytes) -> Iterator[tuple[int, int, str]]:
    """Line, column and text of every comment, as far as the source can be read."""
    try:
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.start[1], token.string
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        # What does not parse is told already.
        return


def _lines(source: bytes) -> Iterator[tuple[int, int, str]]:
    for number, line in enumerate(source.decode("utf-8", errors="replace").split("\n"), start=1):
        yield number, 0, _CELL_END.sub("", line.rstrip())
