"""What an object of the program is to FSDP1: a wrapped model, a part of one, its parameter, or none of these."""

from __future__ import annotations

import types
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..models import is_fsdp1
from .chains import Chain, Step

#: Elements of a container that are looked at.
_MOST = 64
_MISSING = object()
_WRAPPED = "_fsdp_wrapped_module"


class Kinds:
    """Tells kinds apart. It is told of every wrap."""

    def __init__(self) -> None:
        self._parts: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._inner: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._wraps = 0
        self._holds: weakref.WeakKeyDictionary[nn.Module, tuple[int, bool]] = weakref.WeakKeyDictionary()
        self._over: weakref.WeakKeyDictionary[Optimizer, tuple[int, bool]] = weakref.WeakKeyDictionary()

    def on_wrap(self, model: nn.Module) -> None:
        """``model`` has become a unit, or an outer one."""
        self._wraps += 1
        for module in model.modules():
            if is_fsdp1(module):
                self._inner.add(getattr(module, _WRAPPED))
            else:
                self._parts.add(module)

    def of(self, value: object) -> str:
        """One word; no code of the program runs."""
        if isinstance(value, nn.Module):
            return self._of_module(value)
        if isinstance(value, torch.Tensor):
            return "parameter" if is_sharded(value) else "tensor"
        if isinstance(value, Optimizer):
            return "optimizer over sharded" if self._is_over(value) else "optimizer"
        if type(value) in (list, tuple, dict, set):
            return self._of_elements(value)
        return "none" if value is None else "other"

    def _of_module(self, module: nn.Module) -> str:
        if is_fsdp1(module):
            return "model"
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            return "list"
        if module in self._inner:
            return "inner"
        if module in self._parts:
            return "part"
        known = self._holds.get(module)
        if known is None or known[0] != self._wraps:
            known = self._holds[module] = self._wraps, any(is_fsdp1(one) for one in module.modules())
        return "holder" if known[1] else "module"

    def _is_over(self, optimizer: Optimizer) -> bool:
        known = self._over.get(optimizer)
        if known is None or known[0] != self._wraps:
            held = any(is_sharded(p) for group in optimizer.param_groups for p in group["params"])
            known = self._over[optimizer] = self._wraps, held
        return known[1]

    def _of_elements(self, container: Any) -> str:
        inside = container.values() if type(container) is dict else container
        if len(inside) > _MOST:
            return "other"
        found = {self.of(one) for one in inside if isinstance(one, nn.Module | torch.Tensor)}
        return next((f"{kind}s" for kind in ("model", "part", "parameter") if kind in found), "other")

    def look(self, chain: Chain, names: Mapping[str, object], globals_: Mapping[str, object]) -> None:
        """Count what ``chain`` is now; not at all where reading it would run code of the program."""
        value = names.get(chain.root, _MISSING)
        if value is _MISSING:
            value = globals_.get(chain.root, _MISSING)
        owner = ""
        for step in chain.steps:
            if value is _MISSING:
                return
            if step == "grad" and isinstance(value, torch.Tensor):
                owner = "gradient" if is_sharded(value) else ""
                value = value.grad if value.is_leaf else _MISSING
            elif step == "data" and isinstance(value, torch.Tensor):
                continue
            else:
                value = _taken(value, step)
        if value is not _MISSING:
            kind = owner if owner and isinstance(value, torch.Tensor) else self.of(value)
            chain.kinds[kind] = chain.kinds.get(kind, 0) + 1


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether FSDP1 shards ``tensor``: a flat parameter, or an original one that is a view of such."""
    found = vars(tensor) if hasattr(tensor, "__dict__") else {}
    return "_fsdp_flattened" in found or type(tensor).__name__ == "FlatParameter"


def _taken(value: Any, step: Step) -> object:
    """The attribute or element, as far as it lies in a dictionary of the object's own."""
    if isinstance(step, tuple):
        try:
            if type(value) is dict:
                return value.get(step[0], _MISSING)
            return value[step[0]] if type(value) in (list, tuple) and isinstance(step[0], int) else _MISSING
        except (IndexError, TypeError):
            return _MISSING
    if isinstance(value, nn.Module):
        return _of_module(value, step)
    return _attribute(value, step)


def _attribute(value: Any, name: str) -> object:
    try:
        own = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        own = {}
    if isinstance(own, Mapping) and name in own and (type(value).__getattribute__ in _PLAIN):
        return own[name]
    for cls in type(value).__mro__:
        if name in cls.__dict__:
            found = cls.__dict__[name]
            if isinstance(found, types.MemberDescriptorType):
                return _slot(found, value)
            return _MISSING if hasattr(type(found), "__get__") else found
    return _MISSING


_PLAIN: tuple[object, ...] = (object.__getattribute__, types.ModuleType.__getattribute__, type.__getattribute__)


def _slot(descriptor: Any, value: object) -> object:
    try:
        return descriptor.__get__(value)
    except AttributeError:
        return _MISSING


def _of_module(module: nn.Module, name: str) -> object:
    """As ``nn.Module`` finds it, and FSDP1, which passes on what it lacks itself to what it wraps."""
    own = module.__dict__
    if name in own:
        return own[name]
    for table in ("_parameters", "_modules", "_buffers"):
        if name in own.get(table, ()):
            return own[table][name]
    inner = own.get("_modules", {}).get(_WRAPPED)
    if inner is None:
        return _MISSING
    return inner if name == "module" else _of_module(inner, name)
