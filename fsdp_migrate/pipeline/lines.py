"""Which lines of two versions of a file are the same."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence


def source_line(source: bytes, line: int) -> str:
    """Line ``line`` of a file, from 1, without its indent; empty where the file has no such line."""
    lines = source.splitlines()
    return lines[line - 1].decode("utf-8", errors="replace").strip() if 0 < line <= len(lines) else ""


class LineMatcher(difflib.SequenceMatcher[bytes]):
    """As :class:`difflib.SequenceMatcher`, for lines of files that changed in many places.

    Lines that each version has once, in the same order in both, are taken as the same; only what lies between them is
    compared. difflib alone takes time that grows with lines times changes: minutes for thousands of changes.
    """

    def __init__(self, before: Sequence[bytes], after: Sequence[bytes]) -> None:
        self._before, self._after = before, after
        super().__init__(None, before, after)

    def get_matching_blocks(self) -> list[difflib.Match]:
        """The blocks in order; no two touch, and the last is empty and stands at the end of both."""
        blocks: list[difflib.Match] = []
        for old, new, size in self._equal():
            last = blocks[-1] if blocks else difflib.Match(0, 0, 0)
            if (last.a + last.size, last.b + last.size) == (old, new):
                blocks[-1:] = [difflib.Match(last.a, last.b, last.size + size)]
            else:
                blocks.append(difflib.Match(old, new, size))
        return [*blocks, difflib.Match(len(self._before), len(self._after), 0)]

    def _equal(self) -> Iterator[tuple[int, int, int]]:
        old = new = 0
        for next_old, next_new in [*self._anchors(), (len(self._before), len(self._after))]:
            if old < next_old and new < next_new:
                between = difflib.SequenceMatcher(None, self._before[old:next_old], self._after[new:next_new])
                for block in between.get_matching_blocks()[:-1]:
                    yield old + block.a, new + block.b, block.size
            if next_old < len(self._before):
                yield next_old, next_new, 1
            old, new = next_old + 1, next_new + 1

    def _anchors(self) -> list[tuple[int, int]]:
        """The longest row of lines that are unique in both versions and stand in the same order."""
        in_before, in_after = Counter(self._before), Counter(self._after)
        places = {line: new for new, line in enumerate(self._after) if in_after[line] == 1}
        pairs = [
            (old, places[line]) for old, line in enumerate(self._before) if in_before[line] == 1 and line in places
        ]
        # The best end of a row of each length, and for each pair the one before it in its row.
        ends: list[int] = []
        at: list[int] = []
        before: list[int] = []
        for index, (_, new) in enumerate(pairs):
            length = bisect_left(ends, new)
            before.append(at[length - 1] if length else -1)
            ends[length : length + 1] = [new]
            at[length : length + 1] = [index]
        row: list[tuple[int, int]] = []
        index = at[-1] if at else -1
        while index >= 0:
            row.append(pairs[index])
            index = before[index]
        return row[::-1]
