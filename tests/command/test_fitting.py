"""Which hunks of a rewrite need which others."""

from __future__ import annotations

import pytest

from fsdp_migrate.pipeline.fitting import apart, missing_names
from fsdp_rules.verdict.finding import Finding, Level

BEFORE = b"from a import old\n\n\ndef f(x):\n    return old(x)\n"
AFTER = b"from b import new\n\n\ndef f(x):\n    return new(x)\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (BEFORE, []),
        (AFTER, []),
        (b"from a import old\n\n\ndef f(x):\n    return new(x)\n", ["new"]),
        (b"from b import new\n\n\ndef f(x):\n    return old(x)\n", ["old"]),
        (b"from b import *\n\n\ndef f(x):\n    global made\n    made = len(__file__)\n    return made\n", []),
        (b"def f(x:\n", []),
        (b"from b import new\n\n\ndef f(x):\n    return mine(new(x))\n", []),
    ],
)
def test_names_without_a_definition(text: bytes, names: list[str]) -> None:
    assert missing_names(BEFORE, text, AFTER) == names


def test_names_that_nothing_ever_bound_are_not_missing() -> None:
    before, after = b"from a import *\nold(thing)\n", b"from a import *\nnew(thing)\nimport new\n"
    assert missing_names(before, b"from a import *\nnew(thing)\n", after) == ["new"]


def finding(rule: str, line: int, path: str = "a.py", wrapped: str = "", end: int = 0) -> Finding:
    return Finding(rule, rule, path, line, 0, end or line, 9, Level.SAFE, "m", statement=line, wrapped=wrapped)


TOGETHER = ("FSDP101", "FSDP102", "FSDP123", "FSDP201")


def test_uses_belong_to_the_wrap_of_their_model() -> None:
    wrap, other = finding("FSDP101", 3, end=6), finding("FSDP101", 30)
    use, away = finding("FSDP201", 50, wrapped="line 4"), finding("FSDP201", 7, "b.py", wrapped="a.py:3")
    assert apart([wrap], [use, away, other], TOGETHER) == [use, away]
    assert apart([use], [wrap, other], TOGETHER) == [wrap]
    assert apart([other], [use, away], TOGETHER) == []


def test_what_belongs_to_no_single_wrap_may_belong_to_any() -> None:
    definition, wrap = finding("FSDP123", 1), finding("FSDP101", 3, "b.py")
    assert apart([definition], [wrap], TOGETHER) == [wrap]
    assert apart([wrap], [finding("FSDP201", 9, "c.py")], TOGETHER) == [finding("FSDP201", 9, "c.py")]


def test_rules_that_hold_for_both_apis_are_left_alone() -> None:
    assert apart([finding("FSDP101", 3)], [finding("FSDP999", 9)], TOGETHER) == []
    assert apart([finding("FSDP999", 3)], [finding("FSDP101", 9)], TOGETHER) == []
