"""Keeps a failure of the recorder apart from one of the program."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch


class Guarded(Protocol):
    """Whose hooks are guarded; ``spent``: seconds that they took."""

    is_on: bool
    spent: float

    def fail(self, reason: str) -> None:
        """Give up recording."""


class Refused(Exception):
    """What the recorder does not do for this program: its text is the reason, and needs no traceback."""


Hook = TypeVar("Hook", bound=Callable[..., None])


def guarded(hook: Hook) -> Hook:
    """A failure of the recorder must not pass for one of the program: it is written down, and recording ends."""

    @functools.wraps(hook)
    def run(self: Guarded, *args: Any) -> None:
        if not self.is_on or torch.compiler.is_compiling():
            return
        began = time.perf_counter()
        try:
            hook(self, *args)
        except Refused as refusal:
            self.fail(str(refusal))
        except Exception:
            self.fail(traceback.format_exc())
        self.spent += time.perf_counter() - began

    return run  # type: ignore[return-value]
