"""What stays the same about a finding while the code around it moves."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

from fsdp_rules.verdict.finding import Finding


def fingerprints(findings: Iterable[Finding], sources: Mapping[str, bytes]) -> list[str]:
    """One for each finding: its rule and the text of its first line, and which of several alike in the file it is.

    ``sources`` has the bytes of each file by its path. A finding about a file that is not among them, a checkpoint,
    goes by its message.
    """
    lines = {path: data.split(b"\n") for path, data in sources.items()}
    seen: Counter[tuple[str, str]] = Counter()
    made = []
    for finding in findings:
        if finding.path in lines:
            text = b" ".join(_line(lines[finding.path], finding.line).split())
        else:
            text = finding.message.encode("utf-8", errors="backslashreplace")
        digest = hashlib.sha256(finding.rule.encode() + b"\0" + text).hexdigest()[:16]
        seen[finding.path, digest] += 1
        made.append(f"{digest}:{seen[finding.path, digest]}")
    return made


def _line(lines: list[bytes], number: int) -> bytes:
    return lines[number - 1] if number <= len(lines) else b""
