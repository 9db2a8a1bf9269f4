"""Comments that silence rules on their line: ``# fsdp-migrate: ignore``, ``# fsdp-migrate: ignore[FSDP203]``."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field

from fsdp_rules.project.walking import walk

#: What people write for one, right or wrong.
MEANT = re.compile(r"#\s*fsdp[-_]migrate\s*:?\s*ignor\w*.*", re.IGNORECASE)
_WRAPS = "FSDP101"
_RULES = r"[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*"
_EXACT = re.compile(rf"#\s*fsdp-migrate:\s*ignore(?:\[\s*(?P<rules>{_RULES})\s*\])?(?=\s*(?:$|#|[:(,.;]|-(?!\w)))")


@dataclass(frozen=True)
class IgnoreComments:
    """``silenced``: the rules that a comment names, by line; none of them means all. ``wrong``: lines of those that are
    meant as one and are not written as one, which silence nothing."""

    silenced: Mapping[int, frozenset[str]] = field(default_factory=dict)
    wrong: Mapping[int, str] = field(default_factory=dict)


def kept_wraps(tree: ast.Module, text: str) -> frozenset[int]:
    """The lines of calls in statements whose comment silences the rule that rewrites wraps: these stay FSDP1's."""
    if not MEANT.search(text):
        return frozenset()
    try:
        silenced = ignore_comments(text).silenced
    except tokenize.TokenError:
        return frozenset()
    lines = {line for line, rules in silenced.items() if not rules or _WRAPS in rules}
    simple = (node for node in walk(tree) if isinstance(node, ast.stmt) and not hasattr(node, "body"))
    calls = ((node.lineno, call.lineno) for node in simple for call in walk(node) if isinstance(call, ast.Call))
    return frozenset(line for statement, line in calls if lines & {statement, line})


def ignore_comments(text: str) -> IgnoreComments:
    """Those of a source that parses."""
    if not MEANT.search(text):
        return IgnoreComments()
    silenced: dict[int, frozenset[str]] = {}
    wrong: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
        meant = MEANT.search(token.string) if token.type == tokenize.COMMENT else None
        if meant is None:
            continue
        exact = _EXACT.match(token.string, meant.start())
        if exact is None:
            wrong[token.start[0]] = meant[0].strip()
        else:
            silenced[token.start[0]] = frozenset(
                name.strip() for name in (exact["rules"] or "").split(",") if name.strip()
            )
    return IgnoreComments(silenced, wrong)
