"""The finding of a rewrite that is nearest to the traceback of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fsdp_rules.verdict.finding import Finding, Level

_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
_LEVELS = (Level.SAFE, Level.REVIEW, Level.MANUAL)


#: What is said of a file, by its path in a tree, each finding after the line that it is about in that tree.
FindingsOf = Callable[[str], Sequence[tuple[int, Finding]]]


def nearest(said: str, tree: Path, findings: FindingsOf) -> tuple[str, Finding] | None:
    """The place, as ``path:line`` in ``tree``, and what was found nearest to it; None where no frame has any.

    The innermost frame in a file with findings decides.
    """
    for frame in reversed([*_FRAME.finditer(said)]):
        file, line = Path(frame["file"]), int(frame["line"])
        if not file.is_relative_to(tree):
            continue
        path = file.relative_to(tree).as_posix()
        found = [(abs(at - line), one.level is Level.SAFE, one) for at, one in findings(path) if one.level in _LEVELS]
        if found:
            # Of those on one line, one with an assumption says most.
            return f"{path}:{line}", min(found, key=lambda entry: entry[:2])[2]
    return None
