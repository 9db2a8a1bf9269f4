"""What of many findings a reader is shown: one entry of a rule for each line, and a count where notes repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fsdp_rules.verdict.finding import Finding, Level

#: So many notes of one rule are shown for a file; JSON and SARIF have all.
MOST_NOTES = 12


@dataclass(frozen=True)
class Rest:
    """``number`` findings of level ``info`` of one rule in one file that are counted instead of shown."""

    path: str
    rule: str
    number: int

    @property
    def sentence(self) -> str:
        """What stands in for them."""
        return f"{self.number} more of {self.rule} in this file (the JSON report has all)"


def shortened(findings: Iterable[Finding]) -> tuple[list[Finding], list[Rest]]:
    """The findings to show, in their order, and what is only counted.

    Findings of one rule and level on one statement become one entry, with each distinct message and advice once. A
    statement is known by its first line. From the thirteenth ``info`` of a rule in a file on, they are counted.
    """
    entries: dict[tuple[str, int, str, Level], list[Finding]] = {}
    for finding in findings:
        line = finding.statement or finding.line
        entries.setdefault((finding.path, line, finding.rule, finding.level), []).append(finding)
    shown: list[Finding] = []
    seen: Counter[tuple[str, str]] = Counter()
    for together in entries.values():
        first = together[0]
        if first.level is Level.INFO:
            seen[first.path, first.rule] += 1
            if seen[first.path, first.rule] > MOST_NOTES:
                continue
        shown.append(_joined(together))
    rest = [Rest(path, rule, number - MOST_NOTES) for (path, rule), number in seen.items() if number > MOST_NOTES]
    return shown, rest


def _joined(together: list[Finding]) -> Finding:
    if len(together) == 1:
        return together[0]
    times = Counter(finding.message for finding in together)
    counted = together[0].level is Level.MANUAL
    messages = [f"{one} ({number} times here)" if counted and number > 1 else one for one, number in times.items()]
    advice = dict.fromkeys(finding.advice for finding in together if finding.advice)
    return replace(together[0], message=". Also: ".join(messages), advice=". Also: ".join(advice))
