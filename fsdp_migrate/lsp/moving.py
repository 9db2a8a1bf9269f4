"""What is known of a text after an edit of it, until it has been looked at again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from fsdp_migrate.lsp.workspace import Open


def moved(found: Open, before: Sequence[str], after: Sequence[str]) -> Open:
    """The same findings and hunks, at their new lines; none of lines that are no longer there."""
    first = _alike(before, after)
    last = _alike(before[first:][::-1], after[first:][::-1])
    end, by = len(before) - last, len(after) - len(before)
    findings = [
        replace(one, line=one.line + by, end_line=one.end_line + by) if one.line > end else one
        for one in found.findings
        if one.end_line <= first or one.line > end
    ]
    hunks = [
        replace(one, start=one.start + by) if one.start >= end else one
        for one in found.hunks
        if one.end <= first or one.start >= end
    ]
    return replace(found, findings=tuple(findings), hunks=tuple(hunks))


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """With how many equal entries both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
