"""The base classes of all rules."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from fsdp_rules.verdict.diagnosis import Diagnosis

if TYPE_CHECKING:
    from fsdp_rules.construction._plan.plan import ShardPlan
    from fsdp_rules.file.file import File


class Rule:
    """One FSDP1 concept: its docstring is its documentation, its example is its first test.

    ``visits`` lists the node types that the engine shows to :meth:`visit`; one walk of the tree serves all rules.
    ``shim``: the rule is about something that fsdp_compat does not carry either, and speaks under ``--to shim`` too.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    visits: ClassVar[tuple[type[cst.CSTNode], ...]] = ()
    shim: ClassVar[bool] = False
    before: ClassVar[str] = ""
    after: ClassVar[str] = ""

    @classmethod
    def doc(cls) -> str:
        """The documentation of the rule, as Markdown."""
        return inspect.getdoc(cls) or ""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Verdicts about ``node``, which is of one of the types in ``visits``."""
        return ()


class ArgumentRule(Rule):
    """A rule for one argument (or a family) of FSDP1's constructor; it adds that argument's part to the plan."""

    arguments: ClassVar[tuple[str, ...]]

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Put the meaning of ``value`` into ``plan``; a verdict of level manual keeps the whole call as it is."""
        raise TypeError(f"{type(self).__name__} does not say what its arguments mean")
