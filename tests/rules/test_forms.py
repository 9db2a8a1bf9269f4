"""Every rule, its whole example in other forms: it speaks there too, or the rule of the call that cannot follow."""

from __future__ import annotations

import pytest

from fsdp_rules.engine.registry import all_rules, in_charge
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from fsdp_rules.verdict.rule import Role, Rule
from tests.rules.forms import FORMS, Form, dotted, imported_again, method, options_unpacked, renamed
from tests.rules.forms import values_made_elsewhere as made
from tests.rules.helpers import rewrite_tree

#: What says what a rule is about is the name itself.
BY_NAME = {
    "FSDP122": "that a module gets the same input in each layer is known by what people call it: cross_attention",
    "FSDP125": "that a registry returns an optimizer is known by what the result is called",
    "FSDP316": "that what is saved are settings is known by what they are called",
    "FSDP214": "that a number is a rank is known by what it is called",
}
COMMENT = "a comment, which no form has that is printed from a syntax tree"
#: What has no such form, by name, and why.
LEFT_OUT: dict[tuple[str, Form], str] = {
    **{(rule, renamed): reason for rule, reason in BY_NAME.items()},
    **{("FSDP905", form): COMMENT for form in FORMS},
    ("FSDP118", options_unpacked): "torch's own TypeError names the argument, before and after a rewrite",
    ("FSDP221", method): "it is about a function that calls itself, which a method of another name does not",
    ("FSDP221", imported_again): "FSDP205 speaks about the test, since DDP has another name in this file",
    ("FSDP903", dotted): "the example imports the name and does not use it",
}
#: Rules of a loop or of states have a test of their own; of these forms they are run in this many besides new names.
DRAWN = 1


def spoken(files: dict[str, str]) -> dict[str, set[Level]]:
    """The rules that speak about one of ``files``, and how loud."""
    for path, text in files.items():
        compile(text, path, "exec", dont_inherit=True)
    levels: dict[str, set[Level]] = {}
    for result in rewrite_tree({path: text.encode() for path, text in files.items()}).values():
        assert isinstance(result, Changed | Unchanged), result
        for found in result.findings:
            levels.setdefault(found.rule, set()).add(found.level)
    return levels


def forms_of(position: int, rule: Rule) -> list[Form]:
    if rule.id[4] not in "23":
        return [*FORMS]
    others = FORMS[1:]
    return [renamed, *(others[(position + step) % len(others)] for step in range(DRAWN))]


@pytest.mark.parametrize(
    ("rule", "forms"),
    [pytest.param(rule, forms_of(position, rule), id=rule.id) for position, rule in enumerate(all_rules())],
)
def test_a_rule_speaks_about_its_example_in_every_form(rule: Rule, forms: list[Form]) -> None:
    run = {form: files for form in forms if (files := form(rule.before)) is not None}
    assert run, "no form changes this example: list it, and why"
    silent = {}
    for form, files in run.items():
        levels = spoken(files)
        # What is in a dictionary that a call unpacks, the rules of its arguments do not see: the call's rule says so.
        is_unseen = rule.id[4] == "1" and form in (options_unpacked, made)
        calls = (in_charge(Role.WRAP).id, in_charge(Role.UNKNOWN).id) if is_unseen else ()
        heard = rule.id in levels or any(levels.get(one, set()) & {Level.REVIEW, Level.MANUAL} for one in calls)
        if heard == ((rule.id, form) in LEFT_OUT):
            silent[form.__name__] = levels
    assert not silent, "silent, or listed as silent and is not"


def test_what_is_left_out_is_a_form_of_a_rule() -> None:
    assert {rule for rule, _ in LEFT_OUT} <= {rule.id for rule in all_rules()}
