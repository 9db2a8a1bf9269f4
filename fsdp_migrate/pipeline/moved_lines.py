"""Where a line of a file went when the file was rewritten."""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from fsdp_migrate.pipeline.lines import LineMatcher
from fsdp_migrate.pipeline.outcome import FileOutcome
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Unchanged

_WORD = re.compile(rb"\w")
#: Where the model of a finding is wrapped: in its own file, or in another one.
_HERE = re.compile(r"line (?P<line>\d+)")
_ELSEWHERE = re.compile(r"(?P<path>.+):(?P<line>\d+)", re.DOTALL)


class Moves:
    """The lines of ``after`` for those of ``before``.

    A line that was replaced is found in what replaced it, from the first word of a line to its end.
    """

    def __init__(self, before: bytes, after: bytes) -> None:
        # Some files have carriage returns alone.
        end = b"\n" if b"\n" in before else b"\r"
        self._lines = after.split(end)
        matcher = LineMatcher(before.split(end), self._lines)
        codes = matcher.get_opcodes()
        self._blocks = [(old_start, new_start, new_end, tag) for tag, old_start, _, new_start, new_end in codes]
        # Before the line that an insertion stands in front of comes the insertion: the last block of a start is wanted.
        self._starts = [block[0] for block in self._blocks]

    def line(self, line: int) -> tuple[int, bytes | None]:
        """The line now, and its text where it is another than before."""
        old_start, new_start, new_end, tag = self._blocks[bisect_right(self._starts, line - 1) - 1]
        offset = line - 1 - old_start
        if tag == "equal":
            return new_start + offset + 1, None
        found = new_start + min(offset, max(new_end - new_start - 1, 0))
        # A bracket that closes says nothing by itself.
        while found > new_start and not _WORD.search(self._lines[found]):
            found -= 1
        return found + 1, self._lines[found] if found < len(self._lines) else b""


def follow(findings: Iterable[Finding], before: bytes, after: bytes) -> tuple[Finding, ...]:
    """The findings with the lines of ``after`` in place of those of ``before``.

    Columns on lines that are still there are kept. A wrap in the same file is followed too.
    """
    moves = Moves(before, after)
    return tuple(_moved(finding, moves) for finding in findings)


def follow_wraps(outcomes: Sequence[FileOutcome]) -> tuple[FileOutcome, ...]:
    """The files with the lines of the wraps in others of them as they are now that those have been written."""
    written = {one.path: (one.before, one.result.source) for one in outcomes if isinstance(one.result, Changed)}
    known: dict[str, Moves] = {}

    def followed(finding: Finding) -> Finding:
        found = _ELSEWHERE.fullmatch(finding.wrapped)
        if found is None or found["path"] not in written:
            return finding
        path = found["path"]
        if path not in known:
            known[path] = Moves(*written[path])
        return dataclasses.replace(finding, wrapped=f"{path}:{known[path].line(int(found['line']))[0]}")

    return tuple(
        dataclasses.replace(one, result=dataclasses.replace(one.result, findings=tuple(map(followed, one.findings))))
        if isinstance(one.result, Changed | Unchanged)
        else one
        for one in outcomes
    )


def _moved(finding: Finding, moves: Moves) -> Finding:
    start, end = moves.line(finding.line), moves.line(finding.end_line)
    column, end_column = finding.column, finding.end_column
    if start[1] is not None:
        column = len(start[1]) - len(start[1].lstrip())
    if end[1] is not None:
        end_column = len(end[1].decode("utf-8", errors="replace").rstrip())
    if start[0] == end[0]:
        end_column = max(column, end_column)
    here = _HERE.fullmatch(finding.wrapped)
    return dataclasses.replace(
        finding,
        line=start[0],
        end_line=max(start[0], end[0]),
        column=column,
        end_column=end_column,
        wrapped=f"line {moves.line(int(here['line']))[0]}" if here else finding.wrapped,
    )
