"""Functions of torch whose calls the recorder sees: backward, clipping, and collectives."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
)
_NAMES = {"all_gather_into_tensor": "all_gather", "all_gather_single": "all_gather"} | dict.fromkeys(
    ("reduce_scatter_single", "reduce_scatter_tensor"), "reduce_scatter"
)


class Listener(Protocol):
    """Who is told of the calls."""

    def on_backward(self, tensors: list[torch.Tensor]) -> None:
        """These values are about to be differentiated."""

    def on_compiled(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is about to be called that ``module.compile()`` has compiled: its hooks are not called eagerly."""

    def before_clip(self, parameters: list[torch.Tensor] | None) -> None:
        """The gradients of these parameters, or of all, are about to be clipped."""

    def after_clip(self, limit: object, norm: object) -> None:
        """The outermost clipping call has returned ``norm``."""


class Calls:
    """The replaced functions, and the way back."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._undo: list[Callable[[], None]] = []
        self._clipping = 0
        self.collectives: Counter[str] = Counter()

    def replace(self) -> None:
        """Put the listening functions in the place of torch's."""
        self._put(torch.autograd, "backward", self._backward)
        self._put(nn.Module, "compile", self._compile)
        for place in (torch.nn.utils, torch.nn.utils.clip_grad):
            self._put(place, "clip_grad_norm_", functools.partial(self._clip, method=False))
            self._put(place, "clip_grad_value_", functools.partial(self._clip, method=False))
        for name in _COLLECTIVES:
            if hasattr(torch.distributed, name):
                self._put(torch.distributed, name, functools.partial(self._collective, name=_NAMES.get(name, name)))

        self.replace_helpers()

    def replace_helpers(self) -> None:
        """The function of ``fsdp_compat`` that takes a model, where the program has imported it."""
        helpers = sys.modules.get("fsdp_compat")
        clip = vars(helpers).get("clip_grad_norm_") if helpers is not None else None
        if clip is not None and not hasattr(clip, "_fsdp_migrate"):
            self._put(helpers, "clip_grad_norm_", functools.partial(self._clip, method=True))

    def replace_methods(self, root: nn.Module) -> None:
        """As :meth:`replace`, for the clipping method that FSDP1 and ``fsdp_compat`` give a model."""
        for cls in type(root).__mro__:
            method = vars(cls).get("clip_grad_norm_")
            if method is not None and not hasattr(method, "_fsdp_migrate"):
                self._put(cls, "clip_grad_norm_", functools.partial(self._clip, method=True))

    def give_back(self) -> None:
        """Restore every function that nobody has replaced since."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        listening = functools.wraps(original)(make(original))
        listening._fsdp_migrate = True  # type: ignore[attr-defined]
        setattr(owner, name, listening)

        def undo() -> None:
            if vars(owner).get(name) is listening:
                setattr(owner, name, original)

        self._undo.append(undo)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                self._listener.on_backward([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
            return original(tensors, *args, **kwargs)

        return backward

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            compiled = module._compiled_call_impl

            def call(*given: Any, **named: Any) -> Any:
                if not torch.compiler.is_compiling():
                    self._listener.on_compiled(module, given, named)
                return compiled(*given, **named)

            module._compiled_call_impl = call

        return compile_

    def _clip(self, original: Callable[..., Any], method: bool) -> Callable[..., Any]:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._clipping:
                return original(parameters, *args, **kwargs)
            if not method and not isinstance(parameters, torch.Tensor):
                parameters = list(parameters)
            self._listener.before_clip(None if method else _listed(parameters))
            self._clipping += 1
            try:
                norm = original(parameters, *args, **kwargs)
            finally:
                self._clipping -= 1
            limit = args[0] if args else next((kwargs[n] for n in ("max_norm", "clip_value") if n in kwargs), None)
            self._listener.after_clip(limit, norm)
            return norm

        return clip

    def _collective(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                self.collectives[name] += 1
                self.collectives[f"{name} bytes"] += _nbytes((*args, *kwargs.values()))
            return original(*args, **kwargs)

        return collective


def _listed(parameters: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _nbytes(arguments: Iterable[Any]) -> int:
    """Bytes of the largest tensor, or list of tensors, among the arguments: what a gather gives or a scatter takes."""
    return max((sum(t.numel() * t.element_size() for t in _tensors(a)) for a in arguments), default=0)


def _tensors(argument: Any) -> list[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    return [item for item in argument if isinstance(item, torch.Tensor)] if isinstance(argument, (list, tuple)) else []
