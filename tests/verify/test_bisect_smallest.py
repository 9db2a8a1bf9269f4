"""The search for the smallest set of edits: what it finds, in how many runs, and forms that do not fit."""

from __future__ import annotations

import itertools
import math

import pytest

from fsdp_migrate.verify.bisect.smallest import most_runs, smallest


def edits(number: int) -> list[str]:
    return [f"edit-{each}" for each in range(number)]


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 13, 30, 100])
def test_each_single_edit_is_found_within_the_runs(number: int) -> None:
    for wrong in edits(number):
        asked: list[frozenset[str]] = []

        def holds(other: frozenset[str], wrong: str = wrong, asked: list[frozenset[str]] = asked) -> bool:
            asked.append(other)
            return wrong in other

        found = smallest(edits(number), holds)
        assert (found.edits, found.is_smallest) == ({wrong}, True)
        assert found.runs == len(asked) == len(set(asked)) <= 2 * math.log2(number) + 4


def test_two_edits_that_need_each_other_are_found() -> None:
    for pair in itertools.combinations(edits(5), 2):
        found = smallest(edits(5), lambda other, pair=pair: other.issuperset(pair))
        assert found.edits == set(pair) or (not found.is_smallest and found.edits is not None)
        assert found.runs <= most_runs(5)
    together = smallest(edits(4), lambda other: other >= {"edit-0", "edit-3"})
    assert (together.edits, together.is_smallest) == ({"edit-0", "edit-3"}, True)


def test_a_suspect_is_asked_about_first() -> None:
    found = smallest(edits(30), lambda other: "edit-17" in other, ["edit-17"])
    assert (found.edits, found.runs) == ({"edit-17"}, 1)
    wrong = smallest(edits(30), lambda other: "edit-17" in other, ["edit-2"])
    assert wrong.edits == {"edit-17"}


def test_where_no_form_helps_that_is_said_after_few_runs() -> None:
    found = smallest(edits(30), lambda other: False)
    assert (found.edits, found.runs, found.is_smallest) == (None, 3, True)
    assert smallest([], lambda other: False).edits is None


def test_a_form_that_does_not_run_with_the_others_is_left_out() -> None:
    def holds(other: frozenset[str]) -> bool | None:
        return None if "edit-6" in other and len(other) > 1 else "edit-5" in other

    found = smallest(edits(8), holds)
    assert (found.edits, found.is_smallest) == ({"edit-5"}, True)
    assert found.runs <= most_runs(8)


def test_what_was_found_with_forms_that_do_not_fit_is_asked_about_again() -> None:
    def holds(other: frozenset[str]) -> bool | None:
        return None if "edit-1" in other and "edit-0" not in other else "edit-2" in other

    found = smallest(edits(4), holds, ["edit-1", "edit-2", "edit-3"])
    assert (found.edits, found.is_smallest) == ({"edit-2"}, True)


def test_runs_that_are_used_up_leave_the_smallest_set_so_far() -> None:
    needed = set(edits(16)[::3])
    found = smallest(edits(16), needed.issubset)
    assert not found.is_smallest
    assert found.edits is not None
    assert needed <= found.edits
    assert found.runs == most_runs(16)
