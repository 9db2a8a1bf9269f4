"""All rules, found by looking: a file with a :class:`Rule` in it is all that a new rule takes."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from fsdp_rules import beyond, construction, hosts, loop, state
from fsdp_rules.verdict.rule import Role, Rule, classes_in

PACKAGES: tuple[ModuleType, ...] = (construction, loop, state, hosts, beyond)


@cache
def all_rules() -> tuple[Rule, ...]:
    """One instance of every rule, by id."""
    classes = (cls for package in PACKAGES for cls in classes_in(package))
    return tuple(sorted((cls() for cls in classes if hasattr(cls, "id")), key=lambda rule: rule.id))


@cache
def in_charge(role: Role) -> Rule:
    """The one rule with this ``role``."""
    (found,) = (rule for rule in all_rules() if rule.role is role)
    return found


@cache
def speaker(rule_id: str) -> Rule:
    """The rule with this id. Raises :class:`LookupError`."""
    for found in all_rules():
        if found.id == rule_id:
            return found
    raise LookupError(f"there is no rule {rule_id}")
