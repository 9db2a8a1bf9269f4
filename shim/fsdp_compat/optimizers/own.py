"""Optimizers that are not torch's: objects with a ``step`` that hold parameters, whichever way.

They cannot be given other parameters, since nobody knows what they hold; nor do they call torch's hooks.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fsdp_compat.messages import shortened
from fsdp_compat.optimizers.replaced import replacement_of, survivors

#: How deep lists in dicts in lists are looked into.
_DEEP = 4


def stop_own_optimizers(module: nn.Module) -> None:
    """Make the step of every such object raise that holds a parameter which sharding ``module`` has replaced.

    Under FSDP1 its step trains on with ``use_orig_params=True``, and nothing without. One that is given new parameters
    before it steps goes on.
    """
    if not survivors(module):
        return
    candidates = gc.get_objects()
    kinds = set(filter(_steps, set(map(type, candidates))))
    for candidate in candidates:
        if type(candidate) in kinds and any(_stale(candidate)):
            step = functools.partial(_step_unless_stale, candidate, candidate.step)
            try:
                candidate.step = step
            except AttributeError:
                _refuse(candidate)


def _steps(kind: type) -> bool:
    # By the classes' own dictionaries, as an attribute may run code.
    return not issubclass(kind, Optimizer | nn.Module | type) and any(
        callable(vars(base).get("step")) for base in kind.__mro__
    )


def _step_unless_stale(own: Any, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _refuse(own)
    return step(*args, **kwargs)


def _refuse(own: Any) -> None:
    stale = list(_stale(own))
    if stale:
        raise RuntimeError(
            f"this {type(own).__name__} was built before the model was sharded and has parameters that are no longer "
            f"in it ({shortened(stale)}): its step would train nothing. Build it after sharding. Only a "
            f"torch.optim.Optimizer gets the new parameters."
        )


def _stale(own: Any) -> Iterator[str]:
    """The names of replaced parameters in the attributes of ``own``."""
    slots = [name for base in type(own).__mro__ for name in _slots(base)]
    values = [*getattr(own, "__dict__", {}).values(), *(getattr(own, name, None) for name in slots)]
    for param in _tensors(values, _DEEP):
        found = replacement_of(param)
        if found is not None:
            yield found.fqn


def _slots(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | set | dict):
        parts = [*value, *value.values()] if isinstance(value, dict) else list(value)
        for part in parts:
            yield from _tensors(part, depth - 1)
