"""Where a line of a file went when the file was rewritten."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable

from fsdp_migrate.pipeline.lines import LineMatcher
from fsdp_rules.verdict.finding import Finding


def follow(findings: Iterable[Finding], before: bytes, after: bytes) -> tuple[Finding, ...]:
    """The findings with the lines of ``after`` in place of those of ``before``.

    A line that was replaced is found at the start of what replaced it. Columns are kept.
    """
    # Some files have carriage returns alone.
    end = b"\n" if b"\n" in before else b"\r"
    matcher = LineMatcher(before.split(end), after.split(end))
    blocks = [(old_start, new_start, new_end, tag) for tag, old_start, _, new_start, new_end in matcher.get_opcodes()]
    # Before the line that an insertion stands in front of comes the insertion: the last block of a start is wanted.
    starts = [block[0] for block in blocks]

    def new_line(line: int) -> int:
        old_start, new_start, new_end, tag = blocks[bisect_right(starts, line - 1) - 1]
        offset = line - 1 - old_start
        return new_start + (offset if tag == "equal" else min(offset, max(new_end - new_start - 1, 0))) + 1

    return tuple(
        dataclasses.replace(finding, line=new_line(finding.line), end_line=new_line(finding.end_line))
        for finding in findings
    )
