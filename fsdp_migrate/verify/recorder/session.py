"""Records what happens between two optimizer steps, for every optimizer of the program."""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from .calls import Calls
from .deep import Deep
from .digest import Range
from .finder import Finder
from .guard import guarded
from .leave import leave
from .look import look
from .models import Named, named_parameters
from .opened import from_an_earlier_run
from .orders import Orders
from .parts import local_of, rank
from .states import Optimizers
from .steps import Steps
from .stopwatch import Stopwatch
from .surroundings import generator, layout, loaded_files, peak, start
from .values import Values
from .writer import Writer

#: Forwards and backwards between two steps that are kept; an evaluation in between may have thousands.
_MOST = 256


class Session:
    """One process of the program; see :class:`~.orders.Orders` for what it records."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._writer = Writer(orders.out)
        self._values = Values()
        self._calls = Calls(self)
        self._optimizers = Optimizers(self._values)
        self._roots: list[nn.Module] = []
        self._names: list[Named] | None = None
        self._known: set[int] = set()
        self._deep: list[Deep] = []
        self._handles: list[Any] = []
        self._pid = os.getpid()
        self._last = time.perf_counter()
        self._pending: dict[str, Any] = {}
        self._grads: dict[str, Any] = {}
        self._sample: list[torch.Tensor] = []
        self._stopwatch = Stopwatch(orders)
        self._rounded, self.spent, self.is_on = 0, 0.0, True
        self._clear()

    def listen(self) -> None:
        """Put all hooks in place."""
        # The hook that finds models is called once more by a compiled one, which it knows by then.
        warnings.filterwarnings("ignore", message="Using `torch.compile\\(module\\)` when there are global hooks")
        self._calls.replace()
        self._steps = Steps(self)
        self._finder = Finder(self._find_root)
        # It cannot be taken back, and must not keep the models, and the threads of their groups, that are over.
        off = weakref.WeakMethod(self._off)
        os.register_at_fork(after_in_child=lambda: (method := off()) and method())
        atexit.register(self.close)

    def helpers_loaded(self) -> None:
        """``fsdp_compat`` has been imported."""
        if self.is_on:
            self._calls.replace_helpers()

    def _off(self) -> None:
        self.is_on = False

    def _find_root(self, module: nn.Module, args: Any) -> None:
        if id(module) not in self._known:
            # Hooks that are added while a module is called see its next call; keywords are only with the caller.
            self._on_new_root(module, args, sys._getframe(1).f_locals.get("kwargs") or {})

    def on_compiled(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A compiled module is called, whose hooks only the compiler calls."""
        (self.on_forward if id(module) in self._known else self._on_new_root)(module, args, kwargs)

    @guarded
    def _on_new_root(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        inside = {id(inner) for inner in module.modules()}
        self._known |= inside
        if not any(True for _ in module.parameters()):
            return
        self._roots = [root for root in self._roots if id(root) not in inside] + [module]
        self._names = None
        number = self._roots.index(module)
        self._calls.replace_methods(module)
        buffers = self._pending.setdefault("first buffers", {})
        for name, buffer in module.named_buffers():
            local = local_of(buffer)
            self._values.put(buffers, f"{number}:{name}", local, Range(0, local.numel(), local.numel()))
        handle = module.register_forward_pre_hook(
            lambda root, args, kwargs: self.on_forward(root, args, kwargs), prepend=True, with_kwargs=True
        )
        self._handles.append(handle)
        if self._orders.deep:
            self._deep.append(Deep(module, number, self._values, self._orders))
        self._stopwatch.begin(module)
        self.on_forward(module, args, kwargs)

    @guarded
    def on_forward(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        """A model's forward begins: the data."""
        if len(self._pending["inputs"]) >= _MOST or root not in self._roots:
            return
        entry: dict[str, Any] = {}
        number = self._roots.index(root)
        self._pending["inputs"].append({"root": number, "grad": torch.is_grad_enabled(), "tensors": entry})
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self._sample = leaves if self._orders.preflight else []
        for position, leaf in enumerate(leaves):
            local = local_of(leaf)
            self._values.put(entry, str(position), local, Range(0, local.numel(), local.numel()))

    @guarded
    def on_backward(self, tensors: list[torch.Tensor]) -> None:
        """Values that are about to be differentiated: the losses."""
        for tensor in tensors:
            if len(self._pending["losses"]) < _MOST:
                entry: dict[str, Any] = {}
                local = local_of(tensor)
                self._pending["losses"].append(entry)
                # A copy: programs add to their losses in place.
                self._values.put(entry, "value", local.clone(), Range(0, local.numel(), local.numel()))

    @guarded
    def before_clip(self, parameters: list[torch.Tensor] | None) -> None:
        """Gradients as they are before the first call that clips them."""
        if self._pending["unclipped"]:
            return
        self._round()
        wanted = None if parameters is None else {id(parameter) for parameter in parameters}
        self._optimizers.gradients(self._named(), self._pending["unclipped"], wanted)

    @guarded
    def after_clip(self, limit: object, norm: object) -> None:
        """What clipping returned, as this rank reads it with ``.item()``."""
        if self._orders.scale and not self._pending["clips"]:
            self._optimizers.scale(self._named(), 1 + self._orders.scale)
        entry: dict[str, Any] = {"limit": float(limit) if isinstance(limit, (int, float)) else None}
        self._pending["clips"].append(entry)
        if isinstance(norm, torch.Tensor):
            entry["partial"] = any(p.is_partial() for p in getattr(norm, "placements", ()))
            local = local_of(norm)
            self._values.put(entry, "value", local, Range(0, local.numel(), local.numel()))

    def _round(self) -> None:
        if self._orders.rounding and all(t.step >= self._orders.rounds_from for t in self._optimizers.traces):
            self._rounded += 1
            self._optimizers.round(self._named(), self._orders.rounding, self._rounded)

    def _named(self) -> list[Named]:
        """The parameters of all models, as they were when the last model or optimizer was found."""
        if self._names is None:
            self._names = [each for number, root in enumerate(self._roots) for each in named_parameters(root, number)]
        return self._names

    @guarded
    def enter(self, optimizer: Optimizer) -> None:
        """A step begins, or one inside of it."""
        trace = self._optimizers.trace(optimizer)
        trace.depth += 1
        if trace.depth == 1 and trace.step >= self._orders.steps:
            self._finish()

    @guarded
    def before_step(self, optimizer: Optimizer) -> None:
        """Gradients, and before the first step the weights; after each call of a closure the gradients again."""
        trace = self._optimizers.trace(optimizer)
        if trace.depth > 1:
            return
        if self._orders.preflight or self._orders.times:
            self.is_on = False
            self._stopwatch.write(optimizer, rank())
            look(self._roots, optimizer, self._orders, rank(), self._sample)
            leave()
        if not trace.began:
            trace.began = True
            self._begin(optimizer)
        if trace.step == 1:
            self._finder.stepped_once(optimizer)
        if not self._pending["unclipped"]:
            self._round()
        self._grads = {}
        self._pending["random"] = generator()
        trace.tell(self._grads)

    def _begin(self, optimizer: Optimizer) -> None:
        """The first step of an optimizer: write what the models are made of."""
        if not self._writer.is_open:
            self._writer.open(rank())
            self._writer.write("start", **start(self._orders.steps, self._orders.deep))
            first = self._pending.pop("first buffers", {})
            self._values.write()
            self._writer.write("buffers", values=first)
        self._names = None
        named = self._named()
        trace = self._optimizers.trace(optimizer)
        trace.attach(named)
        models = [
            layout(root, number, [each for each in named if each.root == number])
            for number, root in enumerate(self._roots)
        ]
        weights: dict[str, Any] = {}
        state: dict[str, Any] = {}
        self._optimizers.weights(named, weights)
        trace.tell_state(state)
        self._values.write()
        self._writer.write(
            "optimizer", number=trace.number, optimizer=type(optimizer).__name__, models=models, weights=weights,
            groups=trace.group_names(), missing=trace.missing(named), state=state, shared=trace.shared(),
        )  # fmt: skip

    @guarded
    def after_step(self, optimizer: Optimizer) -> None:
        """Weights and optimizer state after the step; then everything since the last one is written."""
        trace = self._optimizers.trace(optimizer)
        trace.depth -= 1
        if trace.depth > 0:
            return
        event = self._pending
        event["grads"] = self._grads
        event["weights"], event["state"] = {}, {}
        trace.tell_after(event["weights"], event["state"])
        event["calls"] = [call for deep in self._deep for call in deep.take()]
        event["buffers"] = {}
        for number, root in enumerate(self._roots):
            for name, buffer in root.named_buffers():
                local = local_of(buffer)
                self._values.put(event["buffers"], f"{number}:{name}", local, Range(0, local.numel(), local.numel()))
        self._values.write()
        now = time.perf_counter()
        self._writer.write(
            "step", optimizer=trace.number, step=trace.step, seconds=max(0.0, now - self._last - self.spent),
            settings=trace.settings(), peak=peak(), collectives=dict(self._calls.collectives), **event,
        )  # fmt: skip
        trace.step += 1
        self._last, self.spent = now, 0.0
        self._clear()
        if trace.step >= self._orders.deep and self._deep:
            for deep in self._deep:
                deep.remove()
            self._deep.clear()
        leaves = self._orders.steps > 1 and not self._orders.saves
        if leaves and all(t.step >= self._orders.steps for t in self._optimizers.traces):
            self._finish()

    def _clear(self) -> None:
        kept = {name: self._pending[name] for name in ("first buffers",) if name in self._pending}
        self._pending = kept | {"inputs": [], "losses": [], "clips": [], "unclipped": {}}
        self._calls.collectives.clear()

    def _finish(self) -> None:
        """Enough is recorded."""
        self._end("enough")
        if self._orders.stop:
            leave()

    def fail(self, reason: str) -> None:
        """Give up recording, and write why."""
        if not self._writer.is_open:
            self._writer.open(rank())
        self._writer.write("failed", reason=reason)
        self._remove()

    def close(self) -> None:
        """The program is over."""
        atexit.unregister(self.close)
        if self.is_on and os.getpid() == self._pid:
            self._end("over")

    def _end(self, why: str) -> None:
        if self._writer.is_open:
            self._writer.write("end", why=why, files=loaded_files(), earlier=from_an_earlier_run())
        self._remove()

    def _remove(self) -> None:
        self.is_on = False
        self._writer.close()
        self._calls.give_back()
        self._finder.remove()
        self._steps.remove()
        for handle in self._handles:
            handle.remove()
        for deep in self._deep:
            deep.remove()
