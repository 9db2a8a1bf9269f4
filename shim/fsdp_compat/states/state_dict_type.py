"""FSDP1's ``state_dict_type``: what ``state_dict`` gives and ``load_state_dict`` takes, unit by unit.

Under the shim a state dict is whole by default, as in FSDP1; FSDP2's own is sharded. The work is done by hooks on
the units, so that it also happens when a module around the model is saved or loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fsdp_compat.states.sharded_tensors import is_sharded_tensor, whole_of
from fsdp_compat.torch_.param_groups import managed_parameters
from fsdp_compat.torch_.registered import still_gathered
from fsdp_compat.torch_.tensors import full_tensor, holds_first_shard, shard_like, whole_copy
from fsdp_compat.units import clean_name, fsdp_modules
from fsdp_compat.vocabulary import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)

_ATTRIBUTE = "_fsdp_compat_state_dict_settings"
_COPIED = "_fsdp_compat_copied"
_CONFIGS = {
    StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}


def install_state_hooks(unit: nn.Module) -> None:
    """Make ``unit`` save and load as FSDP1 does, whole by default. Once per unit."""
    if _ATTRIBUTE not in unit.__dict__:
        unit.__dict__[_ATTRIBUTE] = _settings(StateDictType.FULL_STATE_DICT, None, None)
        unit.register_state_dict_post_hook(_export)  # type: ignore[no-untyped-call]
        unit.register_load_state_dict_pre_hook(_import)  # type: ignore[no-untyped-call]


def set_state_dict_type(
    module: nn.Module,
    state_dict_type: StateDictType,
    state_dict_config: StateDictConfig | None = None,
    optim_state_dict_config: OptimStateDictConfig | None = None,
) -> StateDictSettings:
    """Set what the state dicts of all units at and below ``module`` look like; returns what was set before.

    Raises NotImplementedError for LOCAL_STATE_DICT, RuntimeError for a config of another type (as FSDP1), ValueError
    for a module without units.
    """
    units = fsdp_modules(module)
    if not units:
        raise ValueError(f"{type(module).__name__} has no FSDP units")
    settings = _settings(state_dict_type, state_dict_config, optim_state_dict_config)
    for unit in units:
        install_state_hooks(unit)
    before = get_state_dict_type(module)
    for unit in units:
        unit.__dict__[_ATTRIBUTE] = settings
    return before


def get_state_dict_type(module: nn.Module) -> StateDictSettings:
    """The settings of the units at and below ``module``: FULL_STATE_DICT unless set otherwise.

    Raises ValueError if they differ from unit to unit, or if there is no unit.
    """
    found: list[StateDictSettings] = [
        unit.__dict__.get(_ATTRIBUTE) or _settings(StateDictType.FULL_STATE_DICT, None, None)
        for unit in fsdp_modules(module)
    ]
    if not found:
        raise ValueError(f"{type(module).__name__} has no FSDP units")
    if any(settings != found[0] for settings in found):
        raise ValueError("the FSDP units have different state dict settings: set them for the whole model")
    return found[0]


@contextlib.contextmanager
def state_dict_type(
    module: nn.Module,
    state_dict_type: StateDictType,
    state_dict_config: StateDictConfig | None = None,
    optim_state_dict_config: OptimStateDictConfig | None = None,
) -> Iterator[None]:
    """:func:`set_state_dict_type` for a block; afterwards, errors included, each unit has what it had."""
    units = fsdp_modules(module)
    before = {unit: unit.__dict__.get(_ATTRIBUTE) for unit in units}
    set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)
    try:
        yield
    finally:
        for unit, settings in before.items():
            unit.__dict__[_ATTRIBUTE] = settings or _settings(StateDictType.FULL_STATE_DICT, None, None)


def _settings(
    kind: StateDictType, config: StateDictConfig | None, optim_config: OptimStateDictConfig | None
) -> StateDictSettings:
    if kind not in _CONFIGS:
        raise NotImplementedError(
            f"{kind} returns FSDP1's flat parameters, which FSDP2 does not have. Use SHARDED_STATE_DICT: it "
            "is local too."
        )
    config_type, optim_config_type = _CONFIGS[kind]
    for name, given, expected in (
        ("state_dict_config", config, config_type),
        ("optim_state_dict_config", optim_config, optim_config_type),
    ):
        if given is not None and type(given) is not expected:
            raise RuntimeError(
                f"Expected {name} of type {expected.__name__}, which {kind} needs, but got {type(given).__name__}"
            )
    settings = StateDictSettings(kind, config or config_type(), optim_config or optim_config_type())
    if kind is StateDictType.SHARDED_STATE_DICT:
        # FSDP1 sets this where it was given a mesh, and its users read it to learn what the shards are.
        settings.state_dict_config = dataclasses.replace(settings.state_dict_config, _use_dtensor=True)  # type: ignore[call-arg]
        settings.optim_state_dict_config = dataclasses.replace(settings.optim_state_dict_config, _use_dtensor=True)  # type: ignore[call-arg]
    return settings


def _export(unit: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    settings: StateDictSettings = unit.__dict__[_ATTRIBUTE]
    full, config = settings.state_dict_type is StateDictType.FULL_STATE_DICT, settings.state_dict_config
    keep = not (isinstance(config, FullStateDictConfig) and config.rank0_only) or _is_first_rank(unit)
    if gathered := still_gathered(unit):
        keys = {clean_name(key.removeprefix(prefix)): key for key in state_dict if key.startswith(prefix)}
        for name, param in unit.named_parameters(remove_duplicate=False):
            if id(param) in gathered and clean_name(name) in keys:
                assert isinstance(param, DTensor)
                state_dict[keys[clean_name(name)]] = shard_like(gathered[id(param)].detach(), param)
    for key in [key for key in state_dict if key.startswith(prefix)]:
        value = state_dict[key]
        if full and isinstance(value, DTensor):
            value = whole_copy(value)
        elif isinstance(value, DTensor) and not hasattr(value, _COPIED):
            # As in FSDP1, what was saved stays as it was while training goes on. Units around this one see it too.
            value = value.detach().clone()
            setattr(value, _COPIED, True)
        if not keep:
            del state_dict[key]
        elif isinstance(value, torch.Tensor):
            state_dict[key] = value.cpu() if config.offload_to_cpu else value


def _import(unit: nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
    for part in fsdp_modules(unit):
        assert isinstance(part, FSDPModule)
        part.reshard()
    # Checkpoint wrappers hide their part of a name from the state dict, and put it back one by one as loading reaches
    # them: some have at this point.
    keys = {clean_name(key.removeprefix(prefix)): key for key in state_dict if key.startswith(prefix)}
    for name, param in unit.named_parameters(remove_duplicate=False):
        key = keys.get(clean_name(name), "")
        value = state_dict.get(key)
        if is_sharded_tensor(value):
            value = state_dict[key] = whole_of(value)
        if isinstance(value, torch.Tensor) and isinstance(param, DTensor) and value.shape == param.shape:
            if isinstance(value, DTensor):
                if value.device_mesh == param.device_mesh and value.placements == param.placements:
                    continue
                value = full_tensor(value)
            state_dict[key] = shard_like(value, param)


def _is_first_rank(unit: nn.Module) -> bool:
    managed = managed_parameters(unit)
    return holds_first_shard(managed[0].sharded, managed[0].data_dimensions) if managed else dist.get_rank() == 0


@dataclasses.dataclass(frozen=True)
class OptimOptions:
    """The settings for optimizer state as the arguments of :func:`fsdp_compat.optim_state_dict`."""

    full: bool
    offload_to_cpu: bool
    rank0_only: bool


def optim_options(module: nn.Module) -> OptimOptions:
    settings = get_state_dict_type(module)
    config = settings.optim_state_dict_config
    return OptimOptions(
        full=settings.state_dict_type is StateDictType.FULL_STATE_DICT,
        offload_to_cpu=config.offload_to_cpu,
        rank0_only=isinstance(config, FullOptimStateDictConfig) and config.rank0_only,
    )
