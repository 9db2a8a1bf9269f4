"""The optimizers of the program: which parameters each steps, with which settings, and its state."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from .digest import Place, Range, spread
from .models import Named
from .parts import Part, local_of, plain_part
from .values import Values


def is_of_a_state_dict() -> bool:
    """Whether a step is not the program's: torch steps a new optimizer once, with zeros, to fill in its state dict."""
    frame = sys._getframe(1)
    for _ in range(12):
        if frame.f_code.co_name == "_init_optim_state":
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


class Trace:
    """One optimizer. ``step`` counts from 0; ``depth`` is more than 0 inside its step; ``began``: weights are taken."""

    def __init__(self, optimizer: Optimizer, number: int, values: Values) -> None:
        self.optimizer, self.number, self._values = optimizer, number, values
        self.step = 0
        self.depth = 0
        self.began = False
        self._parts: dict[int, list[tuple[str, Part]]] = {}

    def attach(self, named: Sequence[Named]) -> None:
        """Settle what each parameter of the optimizer is called."""
        by_tensor: dict[int, list[tuple[str, Part]]] = {}
        for each in named:
            by_tensor.setdefault(id(each.tensor), []).append((each.key, each.part))
        for group_number, group in enumerate(self.optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                unknown = [(f"-:optimizer{self.number}.{group_number}.{position}", plain_part(parameter))]
                self._parts[id(parameter)] = by_tensor.get(id(parameter), unknown)

    def missing(self, named: Sequence[Named]) -> list[str]:
        """Trained parameters of the models that this optimizer does not have."""
        return [each.key for each in named if each.tensor.requires_grad and id(each.tensor) not in self._parts]

    def group_names(self) -> list[list[str]]:
        """The parameters of each group."""
        groups = self.optimizer.param_groups
        return [[key for p in group["params"] for key, _ in self._parts[id(p)]] for group in groups]

    def settings(self) -> list[dict[str, Any]]:
        """The settings of each group, without its parameters."""
        return [
            {name: plain for name, value in group.items() if name != "params" and (plain := _plain(value)) is not None}
            for group in self.optimizer.param_groups
        ]

    def tell(self, grads: dict[str, Any]) -> None:
        """Digest every gradient. A parameter without one is in ``grads`` with None."""
        with self._values.together():
            for parameter, key, part in self._each():
                put_gradient(self._values, grads, key, part, parameter)

    def tell_after(self, weights: dict[str, Any], state: dict[str, Any]) -> None:
        """Digest every parameter and its state."""
        with self._values.together():
            for parameter, key, part in self._each():
                put(self._values, weights, key, part, parameter)
        self.tell_state(state)

    def tell_state(self, state: dict[str, Any]) -> None:
        """Digest the state of every parameter that has one."""
        with self._values.together():
            for parameter, key, part in self._each():
                found: dict[str, Any] = {}
                for name, value in self.optimizer.state.get(parameter, {}).items():
                    self._put_state(found, str(name), value, parameter, part)
                if found:
                    state[key] = found

    def shared(self) -> dict[str, list[str]]:
        """The names of states that are one tensor: ``between`` several parameters, and ``within`` one."""
        owners: dict[tuple[int, int], list[tuple[int, str]]] = {}
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and (local := local_of(value)).numel():
                    place = (local.untyped_storage().data_ptr(), int(local.storage_offset()))
                    owners.setdefault(place, []).append((id(parameter), str(name)))
        several = [each for each in owners.values() if len(each) > 1]
        return {
            "between": sorted({name for each in several if len({of for of, _ in each}) > 1 for _, name in each}),
            "within": sorted({name for each in several if len({of for of, _ in each}) == 1 for _, name in each}),
        }

    def _put_state(self, found: dict[str, Any], name: str, value: Any, parameter: torch.Tensor, part: Part) -> None:
        if not isinstance(value, torch.Tensor) or (not value.dim() and value.device.type == "cpu"):
            if (plain := _plain(value)) is not None:
                found[name] = plain
        elif local_of(value).numel() == local_of(parameter).numel() and value.dim():
            put(self._values, found, name, part, value, samples=False)
        else:
            local = local_of(value)
            self._values.put(found, name, local, Range(0, local.numel(), local.numel()), samples=False)

    def _each(self) -> list[tuple[torch.Tensor, str, Part]]:
        return [
            (parameter, key, part)
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            for key, part in self._parts.get(id(parameter), ())
        ]


class Optimizers:
    """All optimizers that have stepped, in that order."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.traces: list[Trace] = []

    def trace(self, optimizer: Optimizer) -> Trace:
        """That of ``optimizer``, a new one when it steps for the first time."""
        for trace in self.traces:
            if trace.optimizer is optimizer:
                return trace
        self.traces.append(Trace(optimizer, len(self.traces), self._values))
        return self.traces[-1]

    def weights(self, named: Sequence[Named], into: dict[str, Any]) -> None:
        """Digest all parameters of all models, trained or not."""
        with self._values.together():
            for each in named:
                put(self._values, into, each.key, each.part, each.tensor)

    def gradients(self, named: Sequence[Named], into: dict[str, Any], wanted: set[int] | None) -> None:
        """Digest the gradients of these tensors, by identity; None: of all."""
        with self._values.together():
            for each in named:
                if wanted is None or id(each.tensor) in wanted:
                    put_gradient(self._values, into, each.key, each.part, each.tensor)

    def scale(self, named: Sequence[Named], by: float) -> None:
        """Scale each gradient on this rank."""
        for gradient in {id(each.tensor): each.tensor.grad for each in named}.values():
            if gradient is not None:
                local_of(gradient).mul_(by)

    def round(self, named: Sequence[Named], sizes: Mapping[str, float], times: int) -> None:
        """Move elements of these gradients as another order of a sum would, differently each of so many ``times``.

        By up to so much of the greatest element on this rank. What is zero is no sum, and remains. Replicas of an
        element are moved alike.
        """
        for each in named:
            if each.tensor.grad is not None and each.key in sizes:
                local, place = _placed(each.part, each.tensor.grad)
                if local.numel():
                    noise = spread(place, times).to(local.device).reshape(local.shape) * sizes[each.key]
                    local.add_((noise * local.abs().max() * (local != 0)).to(local.dtype))


def put_gradient(values: Values, into: dict[str, Any], key: str, part: Part, parameter: torch.Tensor) -> None:
    if parameter.grad is None:
        into[key] = None
    else:
        put(values, into, key, part, parameter.grad)


def put(values: Values, into: dict[str, Any], key: str, part: Part, tensor: torch.Tensor, samples: bool = True) -> None:
    """Digest one rank's part of ``tensor``, or all of it where it is whole at the moment."""
    values.put(into, key, *_placed(part, tensor), samples)


def _placed(part: Part, tensor: torch.Tensor) -> tuple[torch.Tensor, Place]:
    """The elements of a part of ``tensor`` on this rank, and where they are in the whole parameter."""
    local = local_of(tensor) if part.cut is None else part.of(tensor)
    if part.cut is None and part.numel != local.numel() == part.whole:
        return local, Range(0, part.whole, part.whole)
    return local, part.place


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 and not value.is_meta and not value.is_complex() else None
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float, str)) for item in value):
        return list(value)
    return None
