"""All rules, found by looking: a file with a :class:`Rule` in it is all that a new rule takes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from fsdp_rules import beyond, construction, loop, state
from fsdp_rules.verdict.rule import ArgumentRule, Rule

PACKAGES: tuple[ModuleType, ...] = (construction, loop, state, beyond)


def _classes() -> Iterator[type[Rule]]:
    for package in PACKAGES:
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            module = importlib.import_module(info.name)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__:
                    yield value


@cache
def all_rules() -> tuple[Rule, ...]:
    """One instance of every rule, by id."""
    return tuple(sorted((cls() for cls in _classes() if hasattr(cls, "id")), key=lambda rule: rule.id))


@cache
def argument_rules() -> dict[str, ArgumentRule]:
    """The rule of each constructor argument."""
    return {name: rule for rule in all_rules() if isinstance(rule, ArgumentRule) for name in rule.arguments}
