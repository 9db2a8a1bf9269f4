"""The base class of the rules for single arguments of FSDP1's constructor, and which rule an argument has."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import ClassVar

import libcst as cst

from fsdp_rules import construction
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.rule import Rule, classes_in


class ArgumentRule(Rule):
    """A rule for one argument (or a family) of FSDP1's constructor; it adds that argument's part to the plan."""

    arguments: ClassVar[tuple[str, ...]]

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Put the meaning of ``value`` into ``plan``; a verdict of level manual keeps the whole call as it is."""
        raise TypeError(f"{type(self).__name__} has no plan() for its arguments")


@cache
def argument_rules() -> dict[str, ArgumentRule]:
    """The rule of each constructor argument."""
    rules = (cls() for cls in classes_in(construction) if issubclass(cls, ArgumentRule))
    return {name: rule for rule in rules for name in rule.arguments}
