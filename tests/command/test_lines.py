"""Comparing lines: the same answer as any diff, also for files with thousands of changes."""

from __future__ import annotations

import random

import pytest

from fsdp_migrate.pipeline.lines import LineMatcher


def lines(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


@pytest.mark.parametrize(
    ("before", "after", "blocks"),
    [
        ("", "", [(0, 0, 0)]),
        ("abc", "abc", [(0, 0, 3), (3, 3, 0)]),
        ("abc", "axc", [(0, 0, 1), (2, 2, 1), (3, 3, 0)]),
        ("abab", "xabab", [(0, 1, 4), (4, 5, 0)]),
        ("abcd", "dabc", [(0, 1, 3), (4, 4, 0)]),
        ("abc", "xyz", [(3, 3, 0)]),
    ],
)
def test_matching_blocks(before: str, after: str, blocks: list[tuple[int, int, int]]) -> None:
    assert LineMatcher(lines(before), lines(after)).get_matching_blocks() == blocks


def test_the_edits_lead_from_one_to_the_other() -> None:
    chance = random.Random(5)
    for _ in range(500):
        before = [b"%d" % chance.randrange(chance.choice([3, 300])) for _ in range(chance.randrange(30))]
        after = list(before)
        for _ in range(chance.randrange(5)):
            at = chance.randrange(len(after) + 1)
            after[at : at + chance.randrange(3)] = [b"%d" % chance.randrange(300) for _ in range(chance.randrange(3))]
        if chance.random() < 0.2:
            chance.shuffle(after)
        made: list[bytes] = []
        at = 0
        for tag, old, old_end, new, new_end in LineMatcher(before, after).get_opcodes():
            assert (old, new) == (at, len(made))
            made += before[old:old_end] if tag == "equal" else after[new:new_end]
            at = old_end
        assert (made, at) == (after, len(before))


def test_thousands_of_changes_take_no_time_that_is_felt() -> None:
    before = [b"%d" % number for number in range(40_000)]
    after = [b"new %d" % number if number % 10 == 0 else line for number, line in enumerate(before)]
    # difflib alone takes minutes here.
    assert len(LineMatcher(before, after).get_opcodes()) == 8_000
