"""Every rule about a wrapped model, its example split over files: it speaks where that is wrapped, and nowhere else."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from functools import cache

import pytest

from fsdp_rules.engine.registry import all_rules
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from fsdp_rules.verdict.rule import Rule
from tests.rules.deep_variants import DEEP
from tests.rules.helpers import rewrite_tree
from tests.rules.variants import USER, VARIANTS, Example, Variant

#: Rules about the process group that the file itself (FSDP232, test_cpu_backend.py) or another one starts (FSDP318,
#: test_async_save.py), wherever the model is from.
OF_THE_GROUP = {"FSDP232", "FSDP318"}
EXAMPLES = [
    (rule, example)
    for rule in all_rules()
    if rule.id[4] in "23" and rule.id not in OF_THE_GROUP and (example := Example.of(rule)) is not None
]

#: Rules that also go by a name that FSDP1 alone has, or by a static method of its class, whatever the model is.
BY_NAME = {
    *("FSDP201", "FSDP202", "FSDP203", "FSDP205", "FSDP207", "FSDP208", "FSDP209", "FSDP216", "FSDP221"),
    *("FSDP301", "FSDP302", "FSDP303", "FSDP304", "FSDP305", "FSDP306", "FSDP307", "FSDP308", "FSDP310"),
    *("FSDP312", "FSDP313", "FSDP314", "FSDP315", "FSDP316"),
}


#: Of a model that may be sharded FSDP218 only notes what would be lost: most that are frozen so are teachers. FSDP231
#: assumes that it is what was taken out of the wrapper, whose children are the same.
NOTED = {"FSDP218", "FSDP231"}


#: Each example is run in this many of the deep variants, the next one in those that follow, so that each variant has
#: more than twenty examples.
DRAWN = 4
DRAWN_DEEP = [
    pytest.param(
        rule, example, DEEP[(index + step) % len(DEEP)], id=f"{rule.id}-{DEEP[(index + step) % len(DEEP)].__name__}"
    )
    for index, (rule, example) in enumerate(EXAMPLES)
    for step in range(DRAWN)
]


def spoken(files: dict[str, str], path: str = USER) -> dict[str, set[Level]]:
    """The rules that speak about the file at ``path``, by default the one that uses the model, and how loud."""
    for name, text in files.items():
        compile(text, name, "exec", dont_inherit=True)
    result = rewrite_tree({name: text.encode() for name, text in files.items()}).get(path, Unchanged())
    assert isinstance(result, Changed | Unchanged), result
    levels: dict[str, set[Level]] = defaultdict(set)
    for found in result.findings:
        levels[found.rule].add(found.level)
    return levels


@cache
def levels_alone(before: str, rule: str) -> frozenset[Level]:
    """How loud ``rule`` is about the example ``before`` in one file."""
    return frozenset(spoken({"alone.py": textwrap.dedent(before)}, "alone.py")[rule])


def check_spoken(rule: Rule, files: dict[str, str]) -> None:
    """``rule`` speaks about the file that uses the model, and as loud as in one file."""
    levels = spoken(files)
    assert rule.id in levels
    if Level.MANUAL in levels_alone(rule.before, rule.id) and rule.id not in NOTED:
        assert Level.MANUAL in levels[rule.id], "what is left to do in one file is left to do in several"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=lambda value: getattr(value, "id", ""))
def test_a_rule_speaks_wherever_the_model_is_used(rule: Rule, example: Example, variant: Variant) -> None:
    check_spoken(rule, variant(example, True))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
@pytest.mark.parametrize(
    ("rule", "example"),
    [(rule, example) for rule, example in EXAMPLES if rule.id not in BY_NAME],
    ids=lambda value: getattr(value, "id", ""),
)
def test_a_rule_is_silent_where_another_model_is_wrapped(rule: Rule, example: Example, variant: Variant) -> None:
    assert rule.id not in spoken(variant(example, False))


@pytest.mark.parametrize(("rule", "example", "variant"), DRAWN_DEEP)
def test_a_rule_speaks_where_the_model_is_three_objects_deep(rule: Rule, example: Example, variant: Variant) -> None:
    check_spoken(rule, variant(example, True))
    if rule.id not in BY_NAME:
        assert rule.id not in spoken(variant(example, False)), "another model is wrapped"
