"""What went into each module in one run, kept for another run, whose modules get it in place of their own inputs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .orders import Orders
from .parts import local_of


class Feed:
    """The first step's inputs of modules, and gradients of their outputs, by module, tensor and call.

    ``orders.feed`` is the folder of the run that kept them; ``name``: of the file of this model and rank. What that run
    does not have, or has in another shape, remains the program's own.
    """

    def __init__(self, orders: Orders, name: str) -> None:
        self._keeps, self._out = orders.keeps, Path(orders.out, name)
        self._given: dict[str, torch.Tensor] = {}
        if orders.feed is not None:
            self._given = torch.load(Path(orders.feed, name), weights_only=True)
        self._kept: dict[str, torch.Tensor] = {}
        self._seen: Counter[str] = Counter()
        self._again: Counter[str] = Counter()

    @property
    def is_needed(self) -> bool:
        return self._keeps or bool(self._given)

    def inputs(self, module: str, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """What the forward of ``module`` goes on with; None: with what it has."""
        call, self._seen[module] = self._seen[module], self._seen[module] + 1
        self._again[module] = 0
        return self._exchanged(f"{module}|{call}|input", args, kwargs)

    def inputs_again(self, module: str, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The same for a forward that activation checkpointing repeats: the latest first, as a backward runs."""
        self._again[module] += 1
        return self._exchanged(f"{module}|{self._seen[module] - self._again[module]}|input", args, kwargs)

    def _exchanged(self, key: str, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if not self.is_needed:
            return None
        number = -1

        def exchange(leaf: Any) -> Any:
            nonlocal number
            if not isinstance(leaf, torch.Tensor) or hasattr(leaf, "_local_tensor"):
                return leaf
            number += 1
            given = self._put_or_get(f"{key} {number}", leaf)
            return leaf if given is None else _Exchange.apply(leaf, given)  # type: ignore[no-untyped-call]

        exchanged: tuple[Any, Any] = tree_map(exchange, (args, kwargs))
        return exchanged if self._given else None

    def gradient(self, module: str, what: str, gradient: torch.Tensor) -> torch.Tensor | None:
        """What the backward goes on with at an output of ``module``; None: with ``gradient``."""
        key = f"{module}|{what}"
        call, self._seen[key] = self._seen[key], self._seen[key] + 1
        return self._put_or_get(f"{key}|{call}", gradient)

    def _put_or_get(self, key: str, tensor: torch.Tensor) -> torch.Tensor | None:
        if self._keeps and key not in self._kept:
            self._kept[key] = local_of(tensor).to("cpu", copy=True)
        given = self._given.get(key)
        if given is None or given.shape != tensor.shape:
            return None
        return given.to(tensor.device, tensor.dtype)

    def end(self) -> None:
        """The first step is over: write what was kept."""
        if self._keeps:
            torch.save(self._kept, self._out)
        self._keeps = False
        self._kept, self._given = {}, {}


class _Exchange(torch.autograd.Function):
    """Other numbers in the place of a tensor, whose gradient is that of the numbers."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """``given``, of the shape and dtype of ``tensor``."""
        return given.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient as it came."""
        return gradients[0], None
