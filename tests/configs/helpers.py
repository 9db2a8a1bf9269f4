"""Migrates one configuration text and holds the output to the house rules."""

from __future__ import annotations

import codecs
import textwrap

from fsdp_migrate.configs.migrate import migrate
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Unchanged

NAME = "accelerate.yaml"


def migrated(text: str | bytes, name: str = NAME, settings: Settings | None = None) -> tuple[str, tuple[Finding, ...]]:
    """What becomes of ``text``, and the findings."""
    data = text if isinstance(text, bytes) else text.encode()
    result = migrate(data, name, settings or Settings())
    assert isinstance(result, Changed | Unchanged), result
    return (result.source if isinstance(result, Changed) else data).decode("utf-8-sig"), result.findings


def check_migrates(before: str, after: str, name: str = NAME, settings: Settings | None = None) -> None:
    """``before`` becomes ``after``, which stays as it is in a second run; CRLF and a byte order mark are kept."""
    before, after = textwrap.dedent(before).lstrip("\n"), textwrap.dedent(after).lstrip("\n")
    assert migrated(before, name, settings)[0] == after
    assert migrated(after, name, settings)[0] == after, "a second run changes the output"
    crlf = codecs.BOM_UTF8 + before.replace("\n", "\r\n").encode()
    result = migrate(crlf, name, settings or Settings())
    assert isinstance(result, Changed if before != after else Unchanged)
    if isinstance(result, Changed):
        assert result.source == codecs.BOM_UTF8 + after.replace("\n", "\r\n").encode()


def found(text: str, name: str = NAME, settings: Settings | None = None) -> set[tuple[str, str]]:
    """Rule and level of each finding."""
    return {(one.rule, one.level.value) for one in migrated(textwrap.dedent(text), name, settings)[1]}


def check_kept(text: str, rule: str, name: str = NAME) -> Finding:
    """``text`` is not changed, and ``rule`` says why, as something to do by hand."""
    text = textwrap.dedent(text).lstrip("\n")
    output, findings = migrated(text, name)
    assert output == text
    manual = [one for one in findings if one.rule == rule and one.level.value == "manual"]
    assert manual, findings
    return manual[0]
