"""The trees of trees.md: what becomes of each file without FSDP1's branches, and what is found on its lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)+)", re.MULTILINE)
_FILE = re.compile(r"^`([\w./]+)`( becomes)?\n\n```(?:python|yaml)\n(.*?)```", re.MULTILINE | re.DOTALL)
_FINDING = re.compile(r"# finding: (\w+)")
TREES = dict(_SECTION.findall(Path(__file__).with_name("trees.md").read_text()))


@pytest.mark.parametrize("name", TREES)
def test_what_becomes_of_a_tree(name: str) -> None:
    blocks = _FILE.findall(TREES[name])
    files = {path: text for path, becomes, text in blocks if not becomes}
    after = {**files, **{path: text for path, becomes, text in blocks if becomes}}
    results = rewrite_tree({path: text.encode() for path, text in files.items()}, Settings(both="retire"))
    assert all(isinstance(result, Changed | Unchanged) for result in results.values()), results
    changed = {path: result.source.decode() for path, result in results.items() if isinstance(result, Changed)}
    assert {**files, **changed} == after
    expected = {
        (path, number, level)
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        for level in _FINDING.findall(line)
    }
    found = [(path, one) for path, result in results.items() for one in getattr(result, "findings", ())]
    assert {(path, one.line, one.level.value) for path, one in found if one.level.value != "safe"} == expected
