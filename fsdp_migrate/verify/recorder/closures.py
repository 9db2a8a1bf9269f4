"""Optimizers that are stepped with a closure: forward and backward run inside the step, once or many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """The closure of a call of ``step``, whose arguments begin with the optimizer; None without one."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    return closure if callable(closure) else None


def listening(
    args: tuple[Any, ...], kwargs: dict[str, Any], after: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with a closure that calls ``after`` at its end."""
    closure = of_call(args, kwargs)
    assert closure is not None

    def run(*given: Any, **named: Any) -> Any:
        value = closure(*given, **named)
        after()
        return value

    if len(args) > 1:
        return (args[0], run, *args[2:]), kwargs
    return args, kwargs | {"closure": run}
