"""What a human has to do is said again as long as nobody has done it: a second run loses no such finding."""

from __future__ import annotations

from collections import Counter

import pytest

from fsdp_rules.engine.registry import all_rules
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree
from tests.rules.test_fixtures import COMMON, DIRECTORY, FIXTURES

EXAMPLES = {rule.id: rule.before for rule in all_rules() if rule.before.strip()}


@pytest.mark.parametrize("name", FIXTURES)
def test_the_programs(name: str) -> None:
    check((DIRECTORY / name / "before.py").read_text(encoding="utf-8"))


@pytest.mark.parametrize("source", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_the_examples(source: str) -> None:
    check(source)


def check(source: str) -> None:
    """Each rule leaves as much to a human in the output of a run as in what it was given."""
    files = {"example.py": source, **{f"{name}.py": text for name, text in COMMON.items()}}
    first = rewrite_tree({path: text.encode() for path, text in files.items()})
    after = {path: text.encode() for path, text in files.items()}
    after.update({path: result.source for path, result in first.items() if isinstance(result, Changed)})
    second = rewrite_tree(after)
    for path in files:
        before, again = (_left(results.get(path, Unchanged())) for results in (first, second))
        assert not before - again, (path, before, again)


def _left(result: object) -> Counter[str]:
    assert isinstance(result, Changed | Unchanged), result
    return Counter(one.rule for one in result.findings if one.level is Level.MANUAL)
