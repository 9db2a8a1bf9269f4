"""Which parameters of a model an optimizer holds: by name, by number, by group."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from fsdp_compat.torch_.registered import show_sharded
from fsdp_compat.units import clean_name, fsdp_modules, saved_name

# What an optimizer is built from: parameters, or groups of them.
OptimInput: TypeAlias = Iterable[torch.Tensor] | Iterable[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Held:
    """The parameters that an optimizer holds, in its order, with their clean names in the model.

    ``groups`` are their names group by group; ``raw_names`` those that ``named_parameters`` of the model gives.
    ``order`` is that of the model: the same on all ranks, as an optimizer's need not be.
    """

    names: dict[torch.Tensor, str]
    groups: tuple[tuple[str, ...], ...]
    raw_names: dict[str, str]
    order: tuple[torch.Tensor, ...]

    @property
    def saved_names(self) -> dict[str, str]:
        """What each name is in a state: that of a compiled model keeps what torch.compile has put into it."""
        return {name: saved_name(raw) for name, raw in self.raw_names.items()}

    def numbers(self) -> dict[str, int]:
        """The number of each name in the optimizer's state dict."""
        return {name: number for number, name in enumerate(self.names.values())}


def held_parameters(model: nn.Module, optim: Optimizer | None, optim_input: OptimInput | None = None) -> Held:
    """What ``optim`` holds, or with ``optim_input`` what an optimizer built from it would hold.

    With neither it is all parameters of ``model``, as in FSDP1. Puts the sharded parameters back in place first.
    What FSDP1 keeps gathered for the next forward, stays so.

    Raises ValueError for a parameter that is not in ``model`` or for no parameters, TypeError for an ``optim_input``
    that is neither parameters nor groups.
    """
    for unit in fsdp_modules(model):
        show_sharded(unit)
    if optim_input is not None:
        warnings.warn(
            "The `optim_input` argument is deprecated. You may remove it from your code without changing its "
            "functionality: pass the optimizer as optim= if the function has no other argument for it.",
            FutureWarning,
            stacklevel=4,
        )
        groups = _groups_of(optim_input)
    elif optim is not None:
        groups = [group["params"] for group in optim.param_groups]
    else:
        groups = [list(model.parameters())]
    known: dict[torch.Tensor, str] = {param: name for name, param in model.named_parameters()}
    names: dict[torch.Tensor, str] = {}
    for index, group in enumerate(groups):
        for position, param in enumerate(group):
            if param not in known:
                raise ValueError(
                    f"parameter {position} of the optimizer's group {index} (shape {tuple(param.shape)}) is not in "
                    f"this {type(model).__name__}. If the optimizer was built before the model was sharded, call "
                    "fsdp_compat.relink_optimizer(optimizer, model) first."
                )
            names[param] = clean_name(known[param])
    return Held(
        names=names,
        groups=tuple(tuple(names[param] for param in group) for group in groups),
        raw_names={names[param]: known[param] for param in names},
        order=tuple(param for param in known if param in names),
    )


def _groups_of(optim_input: OptimInput) -> list[Sequence[torch.Tensor]]:
    if isinstance(optim_input, torch.Tensor | dict):
        raise TypeError(
            "Optimizer input should be an iterable of Tensors or dicts, but got "
            f"{type(optim_input).__name__}: pass it in a list"
        )
    given: list[Any] = list(optim_input)
    if not given:
        raise ValueError("Optimizer input should not be empty")
    if all(isinstance(one, torch.Tensor) for one in given):
        return [given]
    if not all(isinstance(one, dict) for one in given):
        raise TypeError("Optimizer input should be an iterable of Tensors or dicts, not of both or of others")
    return [
        [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"]) for group in given
    ]
