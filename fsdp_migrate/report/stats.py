"""How many findings each rule has: what ``--stats`` prints in place of the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fsdp_rules.verdict.finding import Finding


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """One line per rule and level: the number, the rule, the level and the name, the most frequent first."""
    counts = Counter((found.rule, found.level.value, found.name) for found in findings)
    width = len(str(max(counts.values(), default=0)))
    for (rule, level, name), number in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        yield f"{number:>{width}}  {rule}  {level:<6}  {name}"
