"""What the command asks of the recorder, handed over in one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field

VARIABLE = "FSDP_MIGRATE_RECORD"


@dataclass(frozen=True)
class Orders:
    """``steps``: optimizer steps to record. ``stop``: end the program after them, or let it run on unrecorded.

    ``deep``: for so many steps also record every module's inputs, outputs and gradients. ``seed``: seed all generators
    when torch is imported. ``since``: seconds since the epoch at which the first run of a comparison began.
    ``scale``: scale clipped gradients by one plus this. ``rounding``: move each element of the gradients of these
    parameters by up to so much of the greatest of them, from the step ``rounds_from`` on. Both are to measure what
    rounding does.
    ``preflight``: look at the model before the first optimizer step, and stop there.
    ``times``: record the first forward and backward for ``tune``, and stop before the first optimizer step.
    ``saves``: end the program only as the step after the last one begins, when what it saves after its step is written.
    ``keeps``: keep what goes into each module in the first step. ``feed``: the folder of a run that kept it, whose
    modules' inputs this run's get in place of their own. Both need ``deep``.
    ``cpu``: answer for the GPUs of a program that runs without one.
    ``observe``: in place of all this, look at the code below this folder, and write which of it holds what.
    """

    out: str
    steps: int = 20
    stop: bool = True
    deep: int = 0
    seed: int | None = None
    since: float | None = None
    scale: float = 0.0
    rounding: dict[str, float] = field(default_factory=dict)
    rounds_from: int = 0
    preflight: bool = False
    times: bool = False
    saves: bool = False
    keeps: bool = False
    feed: str | None = None
    cpu: bool = False
    observe: str = ""

    def environment(self) -> dict[str, str]:
        """The variable, as :func:`from_environment` reads it."""
        return {VARIABLE: json.dumps(asdict(self))}


def from_environment() -> Orders:
    """What this process was told to do."""
    return Orders(**json.loads(os.environ[VARIABLE]))
