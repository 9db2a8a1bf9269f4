"""What two runs differ in, and the order of the questions that find it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from fsdp_migrate.verify.compare.gap import Gap


class Question(IntEnum):
    """In the order in which one step asks them: each can only be answered where those before it agree."""

    ENVIRONMENT = 0
    DATA = 1
    INITIAL_WEIGHTS = 2
    INITIAL_BUFFERS = 3
    INITIAL_STATE = 4
    UNITS = 5
    FORWARD = 6
    LOSS = 7
    LOCAL_GRADIENTS = 8
    GRADIENTS = 9
    NORM = 10
    CLIPPED_GRADIENTS = 11
    SETTINGS = 12
    STATE = 13
    WEIGHTS = 14
    BUFFERS = 15

    @property
    def text(self) -> str:
        """As reports name it."""
        return _TEXTS[self]


_TEXTS = {
    Question.ENVIRONMENT: "environment",
    Question.DATA: "data",
    Question.INITIAL_WEIGHTS: "initial weights",
    Question.INITIAL_BUFFERS: "initial buffers",
    Question.INITIAL_STATE: "initial optimizer state",
    Question.UNITS: "units, dtypes and meshes",
    Question.FORWARD: "forward of modules",
    Question.LOSS: "loss",
    Question.LOCAL_GRADIENTS: "gradients before reduction",
    Question.GRADIENTS: "gradients",
    Question.NORM: "gradient norm",
    Question.CLIPPED_GRADIENTS: "gradients after clipping",
    Question.SETTINGS: "optimizer settings",
    Question.STATE: "optimizer state",
    Question.WEIGHTS: "weights",
    Question.BUFFERS: "buffers",
}
#: What does not decide the verdict as long as all values agree.
CONTEXT = {Question.ENVIRONMENT, Question.UNITS}
#: Norms add up squares in the order of the shards, in fp32: relative differences up to this are none by themselves.
#: What they do to gradients when clipping is active is compared bit for bit.
NORM_ROUNDING = 1e-5


@dataclass(frozen=True)
class Difference:
    """``step``, of its optimizer, -1 before the first one; ``name`` is a parameter, a module, a setting, or empty.

    ``event``: the position of that step among those of all optimizers, in the order in which they were made.
    ``share``: the greatest magnitude in the tensor over the greatest that it has had.
    """

    question: Question
    step: int
    name: str
    before: str
    after: str
    gap: Gap | None = None
    rank: int | None = None
    optimizer: int = 0
    what: str = ""
    event: int = -1
    share: float = 1.0

    @property
    def subject(self) -> str:
        """The tensor, whatever the rank and the step."""
        return f"{self.name} {self.what}"

    @property
    def noise(self) -> float:
        """What the difference counts as where it is held against noise, which is of the size that a tensor has had."""
        return self.relative * self.share

    @property
    def relative(self) -> float:
        return self.gap.relative if self.gap is not None else float("inf")


@dataclass
class Tally:
    """What was compared, per question: how many values, and which of them differ, in order.

    ``rounded`` counts the norms that are not the same bits and within :data:`NORM_ROUNDING`.
    """

    compared: dict[Question, int] = field(default_factory=dict)
    rounded: int = 0
    differences: dict[Question, list[Difference]] = field(default_factory=dict)

    def count(self, question: Question, values: int = 1) -> None:
        self.compared[question] = self.compared.get(question, 0) + values

    def add(self, difference: Difference) -> None:
        self.differences.setdefault(difference.question, []).append(difference)

    def of(self, question: Question) -> list[Difference]:
        """The differences of one question, the earliest first."""
        return self.differences.get(question, [])
