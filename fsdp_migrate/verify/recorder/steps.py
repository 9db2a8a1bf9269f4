"""Hooks around the step of every optimizer, with a closure or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .states import is_of_a_state_dict


class Listener(Protocol):
    """Who is told of the steps."""

    def enter(self, optimizer: Optimizer) -> None:
        """A step begins."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Gradients are there: at the beginning of the step, or after each call of its closure."""

    def after_step(self, optimizer: Optimizer) -> None:
        """The step is over."""


class Steps:
    """The hooks, and the way back."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._before = register_optimizer_step_pre_hook(self._on_begin)
        self._after = register_optimizer_step_post_hook(self._on_end)

    def remove(self) -> None:
        """Take the hooks off; also from inside of one."""
        self._before.remove()
        self._after.remove()

    def _on_begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if is_of_a_state_dict():
            return None
        _last(self._after)
        self._listener.enter(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._listener.before_step(optimizer)
            return None
        listening = self._around(closure, optimizer)
        return ((args[0], listening, *args[2:]), kwargs) if len(args) > 1 else (args, kwargs | {"closure": listening})

    def _around(self, closure: Callable[..., Any], optimizer: Optimizer) -> Callable[..., Any]:
        """``closure``, in which forward and backward are, with a look at its end."""

        def run(*args: Any, **kwargs: Any) -> Any:
            value = closure(*args, **kwargs)
            self._listener.before_step(optimizer)
            return value

        return run

    def _on_end(self, optimizer: Optimizer, *_: Any) -> None:
        if not is_of_a_state_dict():
            _last(self._before)
            self._listener.after_step(optimizer)


def _last(handle: Any) -> None:
    """Put a hook behind all others of its kind, while none of them runs: only the last can be taken off by itself."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None and handle.id in hooks:
        hooks.move_to_end(handle.id)
