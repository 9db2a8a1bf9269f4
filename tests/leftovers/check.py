"""Which uses of FSDP1 a rewrite has left behind without a word."""

from __future__ import annotations

import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tests.leftovers.uses import Use, uses

TODO = "# TODO(fsdp-migrate "
#: Levels that tell a reader about code that stands there as it did; ``safe`` says that nothing of it is left.
SPOKEN = frozenset({"review", "manual", "info"})
#: The kinds of uses that do nothing by themselves, for which one finding in the file that names them does.
VALUES = frozenset({"value", "import"})


def left(sources: Mapping[str, str], findings: Iterable[Mapping[str, Any]]) -> list[Use]:
    """The uses in the rewritten ``sources`` (path → text) at whose statement no finding and no TODO stands.

    ``findings`` are those of the JSON report, with the lines of the rewritten files.
    """
    spoken: dict[str, set[int]] = defaultdict(set)
    said: dict[str, str] = defaultdict(str)
    for finding in findings:
        if finding["level"] in SPOKEN:
            said[finding["path"]] += f" {finding['message']}"
            # Its first line alone: a finding about a block says nothing about each statement in it.
            spoken[finding["path"]].add(finding["line"])
    for path, text in sources.items():
        spoken[path] |= _todo_lines(text)
    return [
        use
        for use in uses(sources)
        if not spoken[use.path].intersection(range(use.first, use.last + 1))
        and not (use.kind in VALUES and re.search(rf"\b{use.what.partition('.')[0]}\b", said[use.path]))
    ]


def _todo_lines(text: str) -> set[int]:
    """The first line of code below each TODO comment."""
    found: set[int] = set()
    waiting = False
    skipped = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and token.string.startswith(TODO):
                waiting = True
            elif waiting and token.type not in skipped:
                found.add(token.start[0])
                waiting = False
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return found
    return found
