"""Which parameters sharding has replaced, so that an optimizer that still holds one cannot silently train nothing.

``fully_shard`` puts new parameters into the modules. FSDP1 with ``use_orig_params=True`` kept the old ones, so code
that builds its optimizer first worked there; here its steps would change tensors that nobody reads.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakTensorKeyDictionary

from fsdp_compat.messages import shortened
from fsdp_compat.optimizers.mixed_groups import split_in_steps
from fsdp_compat.torch_.assigned_data import note_data, refuse_assigned_data
from fsdp_compat.torch_.gathering import gathered_copies, is_left_alone
from fsdp_compat.torch_.param_groups import exchanged_parameters, has_run, managed_parameters
from fsdp_compat.torch_.versions import TRACES_UNITS
from fsdp_compat.units import Place, parameter_at


@dataclass(frozen=True)
class Replacement:
    """Where a replaced parameter's successor is registered.

    ``lives_on`` where FSDP1 would not have replaced it, as with ``use_orig_params=True``: optimizers follow it.
    """

    module: weakref.ref[nn.Module]
    name: str
    fqn: str
    lives_on: bool

    def current(self) -> nn.Parameter | None:
        """The successor, or None if its module is gone. The module's unit must be sharded at the time."""
        module = self.module()
        return None if module is None else module._parameters.get(self.name)


_replaced = WeakTensorKeyDictionary()
_sharded_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
# An optimizer is looked at once per set of parameters, and again after every sharding.
_checked: weakref.WeakKeyDictionary[Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
_shardings = 0


def watch(
    places: Iterable[tuple[Place, str]], units: Iterable[nn.Module], living_on: Container[Place] = frozenset()
) -> None:
    """Note the parameters now at ``places`` (each with its name in the model), before ``units`` are sharded."""
    global _shardings
    note_parameters(places, living_on)
    _sharded_modules.update(units)
    if _shardings == 0:
        register_optimizer_step_pre_hook(_before_step)
        _follow_in_new_groups()
    split_in_steps()
    _shardings += 1


def note_parameters(places: Iterable[tuple[Place, str]], living_on: Container[Place] = frozenset()) -> None:
    """Note the parameters now at ``places``, except tensor subclasses on the meta device.

    Those ``living_on`` have a successor for everybody who holds them.

    ``to_empty`` exchanges what is in those, which torch refuses where there are weak references; again after that.
    """
    for (module, name), fqn in places:
        param = parameter_at((module, name))
        if not (param.is_meta and is_traceable_wrapper_subclass(param)):
            _replaced[param] = Replacement(weakref.ref(module), name, fqn, (module, name) in living_on)


def replacement_of(param: torch.Tensor) -> Replacement | None:
    """Where the successor of ``param`` is, if sharding replaced it."""
    found: Replacement | None = _replaced.get(param)  # type: ignore[no-untyped-call]
    return found if found is not None and found.current() is not param else None


def survivors(module: nn.Module) -> dict[torch.Tensor, str]:
    """The parameters that sharding ``module`` has replaced and that somebody still holds, with their names."""
    parts = set(module.modules())
    alive: list[tuple[torch.Tensor, Replacement]] = list(_replaced.items())  # type: ignore[no-untyped-call]
    return {param: found.fqn for param, found in alive if found.module() in parts and replacement_of(param) is not None}


def _follow_in_new_groups() -> None:
    """Let optimizers that are built later, of parameters from before the sharding, hold those of the model.

    FSDP1 with ``use_orig_params=True`` keeps the parameters, so that groups may be collected before it wraps.
    """
    add = Optimizer.add_param_group

    @functools.wraps(add)
    def add_and_follow(self: Optimizer, param_group: dict[str, Any]) -> None:
        add(self, param_group)
        split_in_steps()
        held = self.param_groups[-1]["params"]
        held[:] = [_followed(param) for param in held]

    Optimizer.add_param_group = add_and_follow  # type: ignore[method-assign]


def _followed(param: torch.Tensor) -> torch.Tensor:
    """The shards that ``param`` lives on in, or ``param`` itself."""
    found = replacement_of(param)
    current = found.current() if found is not None and found.lives_on else None
    if current is None or isinstance(current, DTensor):
        return param if current is None else current
    managed = [one for unit in filter(_is_sharded, _sharded_modules) for one in managed_parameters(unit)]
    return next((one.sharded for one in managed if one.unsharded is current), param)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    _refuse_stale_parameters(optimizer)
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    for module in filter(_is_sharded, _sharded_modules):
        refuse_assigned_data(module, held)


def _refuse_stale_parameters(optimizer: Optimizer) -> None:
    """Raise RuntimeError if ``optimizer`` holds parameters that nobody reads."""
    version = (_shardings, sum(len(group["params"]) for group in optimizer.param_groups))
    if _checked.get(optimizer) == version:
        return
    held = [param for group in optimizer.param_groups for param in group["params"]]
    stale = [found.fqn for found in map(replacement_of, held) if found is not None]
    if stale:
        raise RuntimeError(
            f"this {type(optimizer).__name__} was built before the model was sharded and has parameters that "
            f"are no longer in it ({shortened(stale)}): its step would train nothing, as under FSDP1 without "
            "use_orig_params=True. Build it after sharding, or call fsdp_compat.relink_optimizer(optimizer, model)."
        )
    copies = gathered_copies(filter(_is_sharded, _sharded_modules))
    temporary = [copies[id(param)] for param in held if id(param) in copies]
    if temporary:
        raise RuntimeError(
            f"this {type(optimizer).__name__} was built between a forward without backward and the next "
            f"backward and has gathered copies of parameters ({shortened(temporary)}): its step would train "
            "nothing. Build it before that forward, or call fsdp_compat.relink_optimizer(optimizer, model)."
        )
    _checked[optimizer] = version


def refuse_exchanged_parameters(unit: nn.Module) -> None:
    """From the second forward on, raise RuntimeError where ``unit`` holds another parameter than the one it shards.

    FSDP2 would silently put its own back. What is exchanged before the first forward it takes over; an assigned
    ``.data``, which it would not notice, is refused from the first one on, and by each optimizer.
    """
    note_data(unit)

    def check(module: nn.Module, args: Any) -> None:
        if is_left_alone(module):
            return
        if not torch.compiler.is_compiling():
            refuse_assigned_data(module)
        if not has_run(module):
            return
        names = exchanged_parameters(module)
        if names:
            raise RuntimeError(
                f"{shortened(names)} of this {type(module).__name__} was replaced by another parameter after "
                f"sharding; the new one would be lost. Write the values into it instead: param.copy_(...) under "
                "FullyShardedDataParallel.summon_full_params(model), or load_state_dict."
            )

    traced = check if TRACES_UNITS else torch.compiler.disable(check)  # type: ignore[no-untyped-call]
    unit.register_forward_pre_hook(traced, prepend=True)


def _is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)
