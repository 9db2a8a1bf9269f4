"""The changes of one file as hunks that can be taken or left one by one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsdp_migrate.pipeline.lines import LineMatcher

#: A line with its end.
LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_CONTEXT = 3
#: How a comment begins that a rewrite writes about what it leaves.
TODO = b"# TODO(fsdp-migrate "


@dataclass(frozen=True)
class Hunk:
    """Some lines of a file before and after, with unchanged lines around; ``start`` counts lines from 0.

    ``key`` stays the same as long as the file and these lines do, wherever in the file they are.
    """

    key: str
    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]

    @property
    def only_comments(self) -> bool:
        """Whether nothing but comments about what is left to do by hand come in."""
        return tuple(line for line in self.new if not line.lstrip().startswith(TODO)) == self.old

    @property
    def end(self) -> int:
        """The line after the last one of ``old``, from 0."""
        return self.start + len(self.old)


@dataclass(frozen=True)
class Choice:
    """What becomes of one hunk: taken as it is, left out, or taken as ``edited``."""

    taken: bool
    edited: bytes | None = None


def hunks(path: str, before: bytes, after: bytes) -> list[Hunk]:
    """The hunks between two versions of the file ``path``, from the top."""
    old, new = LINE.findall(before), LINE.findall(after)
    found: list[Hunk] = []
    seen: dict[str, int] = {}
    for group in LineMatcher(old, new).get_grouped_opcodes(_CONTEXT):
        (_, start, _, into, _), (_, _, end, _, into_end) = group[0], group[-1]
        mine, theirs = tuple(old[start:end]), tuple(new[into:into_end])
        text = b"\0".join([path.encode("utf-8", "surrogateescape"), *mine, b"\1", *theirs])
        digest = hashlib.sha256(text).hexdigest()[:24]
        seen[digest] = seen.get(digest, 0) + 1
        found.append(Hunk(f"{digest}:{seen[digest]}", start, mine, theirs))
    return found


def chosen(before: bytes, found: Sequence[Hunk], choices: Mapping[str, Choice]) -> bytes:
    """The file ``before`` with those of its hunks that are taken."""
    lines = LINE.findall(before)
    parts: list[bytes] = []
    at = 0
    for hunk in found:
        choice = choices[hunk.key]
        if choice.taken:
            parts += lines[at : hunk.start]
            parts += hunk.new if choice.edited is None else (choice.edited,)
            at = hunk.end
    return b"".join([*parts, *lines[at:]])
