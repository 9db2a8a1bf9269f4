"""The text of a negated condition means the opposite, whatever the condition is made of."""

from __future__ import annotations

import itertools
import random

import libcst as cst
import pytest

from fsdp_rules.file.negation import asserted, negated

LEAVES = ["a", "b", "(a)", "a < b", "b % 3", "(b % 2)", "not a", "a is b", "a < b < c", "True", "f(a)", "(x := a)"]


def code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node).strip()


def condition(chance: random.Random, depth: int) -> str:
    if depth == 0:
        return chance.choice(LEAVES)
    sides = [condition(chance, depth - 1) for _ in range(3)]
    forms = ["{} and {}", "{} or {}", "({} and {})", "({} or {})", "not ({})", "({} if {} else {})"]
    return chance.choice(forms).format(*sides)


@pytest.mark.parametrize("seed", range(200))
def test_opposite(seed: int) -> None:
    chance = random.Random(seed)
    text = condition(chance, chance.randint(0, 3))
    node = cst.parse_expression(text)
    for a, b, c in itertools.product(range(3), repeat=3):
        names = {"a": a, "b": b, "c": c, "f": bool}
        wanted = bool(eval(text, names))
        assert bool(eval(f"f({asserted(node, code)})", names)) is wanted
        assert bool(eval(f"f({negated(node, code)})", names)) is not wanted, negated(node, code)
