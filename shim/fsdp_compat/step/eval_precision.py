"""``FSDP_USE_FULL_PREC_IN_EVAL=1``: what is in eval mode computes, and reduces gradients, in full precision."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from fsdp_compat.torch_.gathering import Kept, exchange_precision
from fsdp_compat.torch_.param_groups import param_groups
from fsdp_compat.units import fsdp_modules


class _Switch:
    """One unit's two precisions, of which one is in use and the other one is kept."""

    def __init__(self) -> None:
        self.is_full = False
        self._kept: Kept = {}

    def set(self, unit: nn.Module, *, full: bool) -> None:
        if full != self.is_full:
            exchange_precision(unit, self._kept)
            self.is_full = full


_switches: weakref.WeakKeyDictionary[nn.Module, _Switch] = weakref.WeakKeyDictionary()


def follow_mode(unit: nn.Module) -> None:
    """Before each forward of ``unit``, put it and the units inside into the precision of the mode that each is in.

    The buffers are :mod:`fsdp_compat.step.buffers`' to cast.
    """
    _switches[unit] = _Switch()
    unit.register_forward_pre_hook(_follow, prepend=True)


def computes_in_full_precision(root: nn.Module) -> bool:
    """Whether ``root`` follows its mode and is in eval; where it holds no parameters, whether any unit inside does."""
    units = [root] if param_groups(root) else fsdp_modules(root)
    return any(unit in _switches and not unit.training for unit in units)


def _follow(unit: nn.Module, args: Any) -> None:
    if _switches[unit].is_full is not unit.training:
        return
    # Those inside as well, as they may be gathered ahead of their own forward.
    for part in fsdp_modules(unit):
        if part in _switches:
            _switches[part].set(part, full=not part.training)
