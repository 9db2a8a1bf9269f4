"""FSDP1's class, its static methods and the optimizers of torch, listened to."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

#: The module that defines FSDP1's class.
FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
#: What it runs around forward and backward; it is imported first.
RUNTIME = "torch.distributed.fsdp._runtime_utils"


class Listener(Protocol):
    """Who is told; each is called from the frame that is given as the number of frames above."""

    def on_read(self, model: nn.Module, name: str) -> None:
        """The attribute ``name`` of a sharded model is read."""

    def on_static(self, name: str, model: object) -> None:
        """A static or class method of FSDP1 is called, with ``model`` as its first argument."""

    def before_wrap(self, module: nn.Module) -> Any:
        """``module`` is going to be wrapped; what is returned comes back."""

    def after_wrap(self, model: nn.Module, arguments: dict[str, Any], before: Any) -> None:
        """It has been wrapped by a call that is in no other wrap."""

    def on_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer has been built."""

    def on_compile(self) -> None:
        """Something is going to be compiled."""

    def on_gradient(self, handle: Any) -> None:
        """The parameters of this handle of FSDP1 have this rank's gradient of one backward."""


class Hooks:
    """The replaced functions, and the way back."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._undo: list[Callable[[], None]] = []
        self._reads: Callable[[], None] | None = None
        self._depth = 0

    def listen(self) -> None:
        """Replace what torch has; FSDP1's class where the program has imported it."""
        self._put(Optimizer, "__init__", self._optimizer)
        self._put(torch, "compile", self._compile)
        self._put(nn.Module, "compile", self._compile)
        if FSDP1 in sys.modules:
            self.fsdp1_loaded()

    def fsdp1_loaded(self) -> None:
        """FSDP1's class is there."""
        cls = sys.modules[FSDP1].FullyShardedDataParallel
        self._put(cls, "__init__", self._init)
        self._put(sys.modules[RUNTIME], "_post_backward_hook", self._gradient)
        for name, raw in list(vars(cls).items()):
            if isinstance(raw, staticmethod | classmethod) and not name.startswith("_"):
                self._put(cls, name, functools.partial(self._static, name))
        if "__getattribute__" not in vars(cls):
            cls.__getattribute__ = self._getattribute()
            self._reads = functools.partial(delattr, cls, "__getattribute__")

    def no_reads(self) -> None:
        """Let attributes be read as they are: a compiler takes no class that has a say in it."""
        if self._reads is not None:
            self._reads()
            self._reads = None

    def give_back(self) -> None:
        """Restore every function that nobody has replaced since."""
        self.no_reads()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        replaced = make(original)
        setattr(owner, name, replaced)

        def undo() -> None:
            if vars(owner).get(name) is replaced:
                setattr(owner, name, original)

        self._undo.append(undo)

    def _getattribute(self) -> Any:
        read, tell = nn.Module.__getattribute__, self._listener.on_read

        def __getattribute__(model: Any, name: str) -> Any:
            if name[:1] != "_":
                tell(model, name)
            return read(model, name)

        return __getattribute__

    def _static(self, name: str, raw: Any) -> Any:
        function = raw.__func__
        tell = self._listener.on_static
        is_of_class = isinstance(raw, classmethod)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = args[1:] if is_of_class else args
            tell(name, given[0] if given else next(iter(kwargs.values()), None))
            return function(*args, **kwargs)

        return type(raw)(call)

    def _init(self, original: Any) -> Any:
        listener = self._listener
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind_partial(model, *args, **kwargs).arguments if not self._depth else {}
            module = given.get("module")
            before = listener.before_wrap(module) if isinstance(module, nn.Module) else None
            self._depth += 1
            try:
                original(model, *args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth:
                listener.after_wrap(model, {n: v for n, v in given.items() if n not in ("self", "module")}, before)

        return __init__

    def _gradient(self, original: Any) -> Any:
        tell = self._listener.on_gradient

        @functools.wraps(original)
        def hook(state: Any, handle: Any, *args: Any) -> Any:
            tell(handle)
            return original(state, handle, *args)

        return hook

    def _optimizer(self, original: Any) -> Any:
        tell = self._listener.on_optimizer

        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            tell(optimizer)

        return __init__

    def _compile(self, original: Any) -> Any:
        tell = self._listener.on_compile

        @functools.wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            tell()
            return original(*args, **kwargs)

        return compile_
