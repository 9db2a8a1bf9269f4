"""What a cause is: something that a pattern of differences can only come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.compare.pairs import shown
from fsdp_migrate.verify.recording.recording import Step

#: What is to be done about a rounding whose effect was not measured.
HOW_FAR = "run fsdp-migrate verify without --no-repeat to measure its effect (recordings: record --rounded)."


@dataclass(frozen=True)
class Named:
    """A cause that was told: ``rule`` explains it with ``fsdp-migrate rules``, and may be empty."""

    cause: str
    message: str
    rule: str
    cure: str
    is_rounding: bool = False


class Cause(ABC):
    """``name`` is short and stable, ``rule`` the id of the rule that explains it, ``cure`` one imperative sentence.

    ``is_rounding``: no defect as long as what follows from it is no larger than a rounding makes it, which is measured.
    """

    name: ClassVar[str]
    rule: ClassVar[str] = ""
    cure: ClassVar[str]
    is_rounding: ClassVar[bool] = False

    @abstractmethod
    def message(self, comparison: Comparison, first: Difference) -> str | None:
        """One sentence if ``first``, the difference that decides, comes from this cause; None otherwise."""

    def named(self, comparison: Comparison, first: Difference) -> Named | None:
        """The cause, where it is this one."""
        text = self.message(comparison, first)
        return None if text is None else Named(self.name, text, self.rule, self.cure, self.is_rounding)


def name_of(comparison: Comparison, *keys: str) -> str:
    """A parameter, module or unit as reports name it, and how many more there are."""
    name = shown(keys[0], comparison.before.models)
    return f"{name} and {len(keys) - 1} more" if len(keys) > 1 else name


def at_step(comparison: Comparison, question: Question, first: Difference) -> list[Difference]:
    """All differences that one question has in the step that decides."""
    return [found for found in comparison.tally.of(question) if found.event == first.event]


def steps_of(comparison: Comparison, first: Difference) -> tuple[Step, Step]:
    """The step that decides, of both runs."""
    return comparison.before.steps[first.event], comparison.after.steps[first.event]
