"""Records one forward and backward of a model: when each module runs, what it costs, and what autograd keeps of it."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from fsdp_compat.preflight.whole_parameters import whole_parameters
from fsdp_compat.units import clean_name

#: As ``fsdp_migrate.tune`` reads them: kind, subject, call, recomputes, differentiable, flops, saved bytes, peak bytes.
Entry = tuple[str, int, int, bool, bool, int, int, int]


class Timeline:
    """A context: the first forward and backward inside are recorded, of ``model`` whole, sharded, or wrapped by FSDP1.

    The model computes what it would without. ``count``: count floating-point operations, which needs a dispatch mode.
    """

    def __init__(self, model: nn.Module, *, count: bool = True) -> None:
        self.modules = _inner_modules(model)
        self._parameters = whole_parameters(model, self.modules)
        self._events: list[Entry] = []
        self._handles: list[RemovableHandle] = []
        self._flops = FlopCounterMode(display=False) if count else None
        self._saved = _Saved({storage for each in self._parameters for storage in each.storages()})
        self._hooks: Any = None
        self._calls = 0
        self._open: list[int] = []
        self._watched: list[tuple[int, Any]] = []
        self._parted: set[int] = set()
        self._forwards = 0
        self._is_over = False
        devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
        self._device = devices.pop() if len(devices) == 1 else None
        self._before = 0

    def __enter__(self) -> Timeline:
        for place, (_, module) in enumerate(self.modules):
            self._handles.append(
                module.register_forward_pre_hook(self._entering(place), prepend=True, with_kwargs=True)
            )
            self._handles.append(module.register_forward_hook(self._leaving(place), always_call=True))
        for place, parameter in enumerate(self._parameters):
            if parameter.tensor is not None and parameter.trained:
                hook = self._accumulated(place)
                self._handles.append(parameter.tensor.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        if self._flops is not None:
            self._flops.__enter__()  # type: ignore[no-untyped-call]
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._saved.pack, _Saved.unpack)
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__()
        if self._flops is not None:
            self._flops.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self.finish()

    def finish(self) -> None:
        """Record nothing more; what was recorded stays."""
        if not self._is_over:
            self._note("end", -1)
            self._is_over = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin(self, called: nn.Module) -> None:
        """Start in the forward of ``called``, whose hooks of this kind are set too late to see it begin."""
        self.__enter__()
        if called is self.modules[0][1]:
            self._enter(0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``fsdp_migrate.tune`` reads them."""
        places = {id(module): place for place, (_, module) in enumerate(self.modules)}
        return {
            "modules": [
                (
                    name,
                    type(module).__name__.removeprefix("FSDP"),
                    [places[id(child)] for child in _inner_children(module)],
                )
                for name, module in self.modules
            ],
            "parameters": [each.as_tuple() for each in self._parameters],
            "events": self._events,
            "parted": sorted(self._parted),
            "microbatches": max(1, self._forwards),
        }

    def _note(self, kind: str, subject: int, call: int = -1) -> None:
        if self._is_over:
            return
        flops = self._flops.get_total_flops() if self._flops is not None else 0
        recomputes = torch._C._current_graph_task_id() != -1
        costs = (int(flops), self._saved.alive, self._peak())
        self._events.append((kind, subject, call, recomputes, torch.is_grad_enabled(), *costs))

    def _peak(self) -> int:
        """The most bytes allocated since this was asked last, above what there was before."""
        if self._device is None:
            return 0
        peak = torch.cuda.max_memory_allocated(self._device) - self._before
        torch.cuda.reset_peak_memory_stats(self._device)
        return max(0, peak)

    def _enter(self, place: int) -> int:
        if place == 0 and torch.is_grad_enabled() and not self._open:
            self._forwards += 1
            if self._forwards == 2:
                # The second of several backwards before an update.
                self._note("end", -1)
                self._is_over = True
        self._calls += 1
        self._open.append(self._calls)
        self._note("enter", place, self._calls)
        return self._calls

    def _entering(self, place: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            call = self._enter(place)
            if self._is_over or not torch.is_grad_enabled():
                return None
            leaves, spec = tree_flatten((args, kwargs))
            grads = [
                number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
            if not grads:
                return None
            passed = _Watch.apply(self, place, call, *(leaves[n] for n in grads))  # type: ignore[no-untyped-call]
            for number, leaf in zip(grads, passed, strict=True):
                leaves[number] = leaf
            if passed[0].grad_fn is not None:
                self._watched.append((place, passed[0].grad_fn))
            return tree_unflatten(leaves, spec)

        return hook

    def _leaving(self, place: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not self._open:
                return
            call = self._open.pop()
            # A recomputation ends as soon as it has what it needs, by an exception.
            self._note("stop" if sys.exc_info()[0] is not None else "exit", place, call)
            if place == 0 and not self._open:
                self._parted |= _parted(output, self._watched)
                self._watched.clear()
            if torch.is_grad_enabled() and not self._is_over:

                def before(gradient: torch.Tensor) -> None:
                    self._note("before", place, call)

                for leaf in _tensors(output):
                    if leaf.requires_grad:
                        leaf.register_hook(before)  # type: ignore[no-untyped-call]

        return hook

    def _accumulated(self, place: int) -> Callable[[torch.Tensor], None]:
        return lambda parameter: self._note("grad", place)


class _Watch(torch.autograd.Function):
    """Notes that the gradients of all differentiable inputs of a call are there; the tensors pass."""

    @staticmethod
    def forward(ctx: Any, timeline: Timeline, place: int, call: int, *inputs: torch.Tensor) -> Any:
        ctx.noted = (timeline, place, call)
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        timeline, place, call = ctx.noted
        timeline._note("after", place, call)
        return (None, None, None, *gradients)


class _Kept:
    """One tensor that autograd keeps, until it lets go of this."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class _Saved:
    """Bytes of the storages that autograd keeps, each once, without those of parameters."""

    def __init__(self, parameters: set[int]) -> None:
        self.alive = 0
        self._parameters = parameters
        self._users: dict[int, int] = {}

    def pack(self, tensor: torch.Tensor) -> _Kept:
        kept = _Kept(tensor)
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._parameters and not isinstance(
            tensor if tensor._base is None else tensor._base, nn.Parameter
        ):
            if not self._users.get(key):
                self.alive += size
            self._users[key] = self._users.get(key, 0) + 1
            weakref.finalize(kept, self._release, key, size)
        return kept

    @staticmethod
    def unpack(kept: _Kept) -> torch.Tensor:
        return kept.tensor

    def _release(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            self.alive -= size


def _parted(output: Any, watched: list[tuple[int, Any]]) -> set[int]:
    """The modules of which an input is used elsewhere too, and more than once inside.

    FSDP2 adds up the gradients of all uses inside of a unit first, and then those of the others.
    """
    uses: Counter[tuple[Any, int]] = Counter()
    left = [leaf.grad_fn for leaf in _tensors(output) if leaf.grad_fn is not None]
    seen = set(left)
    while left:
        for edge in left.pop().next_functions:
            uses[edge] += 1
            if edge[0] is not None and edge[0] not in seen:
                seen.add(edge[0])
                left.append(edge[0])
    return {
        place
        for place, node in watched
        for number, edge in enumerate(node.next_functions)
        if uses[edge] > 1 and uses[node, number] > 1
    }


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those of an output, also in dataclasses, which are no nests to pytree."""
    for leaf in tree_flatten(value)[0]:
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from _tensors(getattr(leaf, field.name))


def _inner_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules by clean names, each once, without FSDP1's wrappers."""
    return [
        (clean_name(f"{name}.").removesuffix("."), module)
        for name, module in model.named_modules()
        if "_fsdp_wrapped_module" not in module._modules
    ]


def _inner_children(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield child._modules.get("_fsdp_wrapped_module") or child
