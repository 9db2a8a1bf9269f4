"""What is drawn of a matrix has every pair of its values, and the rest is marked."""

from __future__ import annotations

from itertools import combinations, product

from _pytest.mark.structures import ParameterSet

from tests.sampling import every, pairwise


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
