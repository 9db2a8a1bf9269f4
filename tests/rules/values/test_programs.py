"""The programs of programs.md: what is found on each line, and nothing else by the rules that a program names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)+)", re.MULTILINE)
_FILE = re.compile(r"^`([\w./]+)`\n\n```python\n(.*?)```", re.MULTILINE | re.DOTALL)
_FINDING = re.compile(r"# finding: \[(\w+)\] (\w+)")
PROGRAMS = dict(_SECTION.findall(Path(__file__).with_name("programs.md").read_text()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_found_on_each_line(name: str) -> None:
    files = dict(_FILE.findall(PROGRAMS[name]))
    expected = {
        (path, number, rule, level)
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        for rule, level in _FINDING.findall(line)
    }
    rules = {rule for _, _, rule, _ in expected}
    assert rules
    found = set()
    for path, result in rewrite_tree({path: text.encode() for path, text in files.items()}).items():
        assert isinstance(result, Changed | Unchanged), result
        found |= {(path, one.line, one.rule, one.level.value) for one in result.findings if one.rule in rules}
    assert found == expected
