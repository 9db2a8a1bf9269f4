"""What is drawn of a matrix has every pair of its values, and the rest is marked."""

from __future__ import annotations

from itertools import combinations, product

from _pytest.mark.structures import ParameterSet

from tests.sampling import every, in_turn, pairwise, tiers


def test_each_pair_of_values_is_drawn() -> None:
    cases = list(product("abcd", "xyz", (True, False)))
    found = pairwise(cases)
    drawn = [case for case in found if not isinstance(case, ParameterSet)]
    left = [case for case in found if isinstance(case, ParameterSet)]
    assert {pair for case in drawn for pair in combinations(enumerate(case), 2)} == {
        pair for case in cases for pair in combinations(enumerate(case), 2)
    }
    assert len(drawn) == 12
    assert sorted([*drawn, *(tuple(case.values) for case in left)]) == sorted(cases)
    assert all([mark.name for mark in case.marks] == ["whole"] for case in left)


def test_each_third_is_drawn() -> None:
    assert [case for case in every(3, range(8)) if not isinstance(case, ParameterSet)] == [0, 3, 6]


def marks_of(case: object) -> list[str]:
    return [mark.name for mark in case.marks] if isinstance(case, ParameterSet) else []


def test_the_rest_of_a_tier_is_long_but_for_each_second() -> None:
    assert [marks_of(case) for case in tiers(range(5), 3, 2)] == [[], ["long"], ["whole"], [], ["whole"]]


def test_each_row_runs_with_one_column_and_each_column_with_some_row() -> None:
    found = in_turn("abcd", [("x", 1), ("y", 2), ("z", 3)])
    assert [case for case in found if not marks_of(case)] == [
        ("a", "x", 1),
        ("b", "y", 2),
        ("c", "z", 3),
        ("d", "x", 1),
    ]
    counts = [sum(marks_of(case) == [name] for case in found) for name in ("whole", "long")]
    assert (len(found), counts) == (12, [4, 4])
