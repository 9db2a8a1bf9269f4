"""Finds models at their first forward, as long as one that an optimizer waits for may still come."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer


class Finder:
    """A hook on the forward of every module, which costs time and is there only while it may find one.

    A model of an optimizer has run forward before its second step. Optimizers that are built later, with a model that
    a checkpoint goes into for instance, put the hook back. ``found`` is that of torch's global forward pre-hooks.
    """

    def __init__(self, found: Callable[[nn.Module, Any], None]) -> None:
        self._found = found
        self._hook: Any = None
        self._waiting: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._original = Optimizer.__init__
        self._replaced = _noting(self._original, weakref.WeakMethod(self._built))
        Optimizer.__init__ = self._replaced  # type: ignore[method-assign]
        self._look()

    def stepped_once(self, optimizer: Optimizer) -> None:
        """``optimizer`` begins its second step."""
        self._waiting.discard(optimizer)
        if not self._waiting:
            self._rest()

    def remove(self) -> None:
        """Take the hook off for good."""
        self._waiting.clear()
        self._rest()
        if Optimizer.__init__ is self._replaced:
            Optimizer.__init__ = self._original  # type: ignore[method-assign]

    def _built(self, optimizer: Optimizer) -> None:
        self._waiting.add(optimizer)
        self._look()

    def _look(self) -> None:
        if self._hook is None:
            self._hook = nn.modules.module.register_module_forward_pre_hook(self._found)

    def _rest(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _noting(original: Callable[..., None], built: weakref.WeakMethod[Callable[[Optimizer], None]]) -> Any:
    @functools.wraps(original)
    def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        note = built()
        if note is not None:
            note(optimizer)

    return init
