"""Which parameters of sharded models get a gradient in each step, on this rank, before anything is reduced."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..models import is_fsdp1
from ..parts import clean


class Used:
    """A parameter was used in a step if an element of its gradient is not zero; of others nothing is known."""

    def __init__(self) -> None:
        self._touched: weakref.WeakKeyDictionary[Any, list[bool]] = weakref.WeakKeyDictionary()
        self._steps: Counter[int] = Counter()
        self._missed: dict[int, Counter[str]] = {}
        self._models: list[tuple[int, weakref.ref[nn.Module]]] = []

    def on_wrap(self, number: int, model: nn.Module) -> None:
        """The wrap ``number`` has made ``model``."""
        self._models.append((number, weakref.ref(model)))
        self._missed[number] = Counter()

    def on_gradient(self, handle: Any) -> None:
        """The flat parameter of ``handle`` has this rank's own gradient, not sharded yet."""
        flat = handle.flat_param
        if flat.grad is None:
            return
        touched = self._touched.setdefault(handle, [False] * len(flat._numels))
        start = position = 0
        gradient = flat.grad.detach().reshape(-1)
        for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
            if not is_padding:
                touched[position] = touched[position] or bool(gradient[start : start + numel].any())
                position += 1
            start += numel

    def on_step(self, optimizer: Optimizer) -> None:
        """A step of ``optimizer`` is over."""
        stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
        seen: dict[Any, list[bool]] = {}
        for number, ref in self._models:
            model = ref()
            handles = [] if model is None else list(_handles(model))
            own = [(prefix, handle) for prefix, handle in handles if not stepped.isdisjoint(map(id, _params(handle)))]
            self._steps[number] += bool(own)
            for prefix, handle in own:
                if handle not in seen:
                    seen[handle] = self._touched.pop(handle, [False] * len(handle.flat_param._numels))
                touched = seen[handle]
                for name, used, trained in zip(handle.flat_param._fqns, touched, _trained(handle), strict=True):
                    if trained and not used:
                        self._missed[number][clean(f"{prefix}.{name}".lstrip("."))] += 1

    def of(self, number: int) -> dict[str, Any]:
        """Steps of the model of a wrap, and for parameters not seen to be used in all, in how many they were not."""
        return {"steps": self._steps[number], "unused": dict(self._missed.get(number, {}))}


def _handles(model: nn.Module) -> list[tuple[str, Any]]:
    units = ((name, module.__dict__.get("_handle")) for name, module in model.named_modules() if is_fsdp1(module))
    return [(name, handle) for name, handle in units if handle is not None]


def _params(handle: Any) -> list[Any]:
    return [handle.flat_param, *(handle.flat_param._params or ())]


def _trained(handle: Any) -> list[bool]:
    flat = handle.flat_param
    originals = flat._params if handle._use_orig_params else [flat] * len(flat._numels)
    return [one.requires_grad for one in originals]
