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
from torch.distributed.fsdp import (
    FSDPModule,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from torch.distributed.tensor import DTensor

from . import torch_internals
from .modules import clean_name, fsdp_modules
from .tensors import holds_first_shard, shard_like, whole_copy

_ATTRIBUTE = "_fsdp_compat_state_dict_settings"
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

    Raises NotImplementedError for LOCAL_STATE_DICT, TypeError for a config of another type, ValueError for a module
    without units.
    """
    units = fsdp_modules(module)
    if not units:
        raise ValueError(f"{type(module).__name__} has no sharded part whose state dict could be of a type")
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
        raise ValueError(f"{type(module).__name__} has no sharded part whose state dict could be of a type")
    if any(settings != found[0] for settings in found):
        raise ValueError("the sharded parts have different state dict settings: set them for the whole model")
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
            f"{kind} is FSDP1's flat parameters, which FSDP2 does not have. Use SHARDED_STATE_DICT: it is local too."
        )
    config_type, optim_config_type = _CONFIGS[kind]
    settings = StateDictSettings(kind, config or config_type(), optim_config or optim_config_type())
    for given, expected in (
        (settings.state_dict_config, config_type),
        (settings.optim_state_dict_config, optim_config_type),
    ):
        if type(given) is not expected:
            raise TypeError(f"{kind} goes with a {expected.__name__}, not with a {type(given).__name__}")
    return settings


def _export(unit: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    settings: StateDictSettings = unit.__dict__[_ATTRIBUTE]
    full, config = settings.state_dict_type is StateDictType.FULL_STATE_DICT, settings.state_dict_config
    keep = not (isinstance(config, FullStateDictConfig) and config.rank0_only) or _is_first_rank(unit)
    for key in [key for key in state_dict if key.startswith(prefix)]:
        value = state_dict[key]
        if full and isinstance(value, DTensor):
            value = whole_copy(value)
        if not keep:
            del state_dict[key]
        elif isinstance(value, torch.Tensor):
            state_dict[key] = value.cpu() if config.offload_to_cpu else value


def _import(unit: nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
    for part in fsdp_modules(unit):
        assert isinstance(part, FSDPModule)
        part.reshard()
    for name, param in unit.named_parameters(remove_duplicate=False):
        # Checkpoint wrappers hide their part of the name from the state dict, and put it back as loading reaches them.
        key = prefix + name if prefix + name in state_dict else prefix + clean_name(name)
        value = state_dict.get(key)
        if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
            continue
        if isinstance(param, DTensor) and value.shape == param.shape:
            state_dict[key] = shard_like(value, param)


def _is_first_rank(unit: nn.Module) -> bool:
    managed = torch_internals.managed_parameters(unit)
    return holds_first_shard(managed[0].sharded, managed[0].data_dimensions) if managed else dist.get_rank() == 0


def optim_options(module: nn.Module) -> dict[str, bool]:
    """The settings of ``module`` as the arguments of :func:`fsdp_compat.optim_state_dict`."""
    settings = get_state_dict_type(module)
    full = settings.state_dict_type is StateDictType.FULL_STATE_DICT
    config = dataclasses.asdict(settings.optim_state_dict_config)
    return {"full": full, "offload_to_cpu": config["offload_to_cpu"], "rank0_only": config.get("rank0_only", False)}
