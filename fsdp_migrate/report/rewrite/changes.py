"""Which lines of a file changed, and which findings they go with."""

from __future__ import annotations

import io
import tokenize
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from fsdp_migrate.pipeline.lines import LineMatcher
from fsdp_migrate.pipeline.outcome import FileOutcome
from fsdp_migrate.report.summary import printable
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed

#: Unchanged lines shown around a change.
CONTEXT = 3
#: What is told of one line: a notebook or generated code may hold megabytes in one.
LONGEST_LINE = 400

_Opcode = tuple[str, int, int, int, int]


@dataclass(frozen=True)
class Hunk:
    """Some lines before and after. Each of ``lines`` begins with ``-`` (before), ``+`` (after) or a blank (both).

    ``before_line`` and ``after_line`` say where the first line stands, from 1. Without a ``-`` or ``+`` it is an
    excerpt of a file that stays as it is there.
    """

    before_line: int
    after_line: int
    lines: tuple[str, ...]

    @property
    def before(self) -> list[str]:
        return [line[1:] for line in self.lines if not line.startswith("+")]

    @property
    def after(self) -> list[str]:
        return [line[1:] for line in self.lines if not line.startswith("-")]

    @property
    def is_excerpt(self) -> bool:
        return all(line.startswith(" ") for line in self.lines)

    @property
    def header(self) -> str:
        """As in a patch."""
        return f"@@ -{self.before_line},{len(self.before)} +{self.after_line},{len(self.after)} @@"


@dataclass(frozen=True)
class Change:
    """Findings that share one hunk, or one finding without."""

    findings: tuple[Finding, ...]
    hunk: Hunk | None


class Reader:
    """The changes of one file. ``diff``: nothing was written, so the lines of findings are those of the old file.

    ``findings``: those to show, without it all of the file.
    """

    def __init__(self, file: FileOutcome, diff: bool, findings: Sequence[Finding] | None = None) -> None:
        after = file.result.source if isinstance(file.result, Changed) else file.before
        found = file.findings if findings is None else findings
        self._findings = sorted(found, key=lambda finding: (finding.line, finding.column, finding.rule))
        self._in_after = isinstance(file.result, Changed) and not diff
        self._before, self._after = _split(file.before), _split(after)
        self._encoding = _encoding(file.before)

    @cached_property
    def _groups(self) -> list[list[_Opcode]]:
        if self._before == self._after:
            return []
        return list(LineMatcher(self._before, self._after).get_grouped_opcodes(CONTEXT))

    def whole(self) -> list[Hunk]:
        """Every hunk of the file."""
        return [self._hunk(group) for group in self._groups]

    def changes(self) -> list[Change]:
        """Every finding once, with the hunk that it lies in, in the order of the file.

        A finding of level ``review`` or ``manual`` that no change touches gets an excerpt of its lines.
        """
        groups = self._groups
        spans = [self._span(group) for group in groups]
        ends = [end for _, end in spans]
        found: dict[int, list[Finding]] = {}
        changes: list[Change] = []
        for finding in self._findings:
            index = bisect_left(ends, finding.line - 1)
            if index < len(spans) and spans[index][0] <= finding.end_line:
                found.setdefault(index, []).append(finding)
            else:
                wanted = finding.level in (Level.REVIEW, Level.MANUAL)
                changes.append(Change((finding,), self._excerpt(finding) if wanted else None))
        changes += [Change(tuple(together), self._hunk(groups[index])) for index, together in found.items()]
        return sorted(changes, key=lambda change: change.findings[0].line)

    def _span(self, group: Sequence[_Opcode]) -> tuple[int, int]:
        """From the first to the last change on the side where findings have their lines, from 0, the end excluded."""
        changed = [opcode for opcode in group if opcode[0] != "equal"]
        return (changed[0][3], changed[-1][4]) if self._in_after else (changed[0][1], changed[-1][2])

    def _hunk(self, group: Sequence[_Opcode]) -> Hunk:
        lines: list[str] = []
        for tag, old, old_end, new, new_end in group:
            if tag == "equal":
                lines += [" " + self._text(line) for line in self._before[old:old_end]]
            else:
                gone, came = self._before[old:old_end], self._after[new:new_end]
                same = [_alike(*pair) for pair in zip(gone, came, strict=False)]
                lines += ["-" + self._text(line, start) for line, start in zip_longest(gone, same)]
                lines += ["+" + self._text(line, start) for line, start in zip_longest(came, same)]
        return Hunk(group[0][1] + 1, group[0][3] + 1, tuple(lines))

    def _excerpt(self, finding: Finding) -> Hunk | None:
        source = self._after if self._in_after else self._before
        start = max(finding.line - 2, 0)
        end = min(finding.end_line, finding.line + 2 * CONTEXT) + 1
        lines = tuple(" " + self._text(line) for line in source[start:end])
        return Hunk(start + 1, start + 1, lines) if lines else None

    def _text(self, line: bytes, same: int | None = None) -> str:
        """A line as it is told; of a very long one the part where, after ``same`` bytes, it begins to differ."""
        text = line.decode(self._encoding, errors="backslashreplace").rstrip("\r")
        if len(text) <= LONGEST_LINE:
            return printable(text.expandtabs())
        start = max(len(line[:same].decode(self._encoding, errors="replace")) - LONGEST_LINE // 4, 0) if same else 0
        part = printable(text[start : start + LONGEST_LINE].expandtabs())
        rest = len(text) - start - LONGEST_LINE
        return (
            f"{f'({start} characters) … ' if start else ''}{part}{f' … ({rest} more characters)' if rest > 0 else ''}"
        )


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes two lines have in common at their start."""
    lengths = range(min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: one[:length] != other[:length]) - 1


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _encoding(data: bytes) -> str:
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        return "utf-8"
