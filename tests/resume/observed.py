"""What a run compares with another one: taken from outside of its program, whatever shards its model."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.distributed.tensor import DTensor


def whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Copies of all weights, buffers and optimizer states by name, whole, on every rank; and the settings of each.

    ``states`` is None where FSDP1 cannot gather them.
    """
    if isinstance(model, FSDP1):
        with FSDP1.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            weights = model.state_dict()
            try:
                state = FSDP1.optim_state_dict(model, optimizer)
            except (AssertionError, RuntimeError, ValueError):
                return {"weights": _copied(weights), "states": None, "settings": None}
        groups = state["param_groups"]
        states = state["state"]
    else:
        weights = model.state_dict()
        names = {param: clean_tensor_name(name) for name, param in model.named_parameters()}
        states = {names[param]: values for param, values in optimizer.state.items()}
        groups = [{**group, "params": [names[param] for param in group["params"]]} for group in optimizer.param_groups]
    settings = {
        name: {key: _number(value) for key, value in group.items() if key not in ("params", "foreach", "fused")}
        for group in groups
        for name in group["params"]
    }
    return {"weights": _copied(weights), "states": _copied(states), "settings": settings}


def _copied(value: Any) -> Any:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else list(value) if isinstance(value, tuple) else value


def describe(net: nn.Module, folder: str, ignored: nn.Module | None = None) -> None:
    """Write the ``template.json`` of docs/checkpoints.md; ``net`` is not wrapped yet, and ``ignored`` never is."""
    first: dict[nn.Parameter, str] = {}
    template: dict[str, Any] = {
        name: list(parameter.shape) if first.setdefault(parameter, name) == name else first[parameter]
        for name, parameter in net.named_parameters(remove_duplicate=False)
    }
    template |= dict.fromkeys(dict(net.named_buffers()))
    outside = {id(parameter) for parameter in ignored.parameters()} if ignored is not None else set()
    for name, parameter in net.named_parameters():
        if id(parameter) in outside:
            del template[name]
    Path(folder, "template.json").write_text(json.dumps(template))


def describe_groups(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    """Write the ``groups.json`` of docs/checkpoints.md."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    Path(folder, "groups.json").write_text(json.dumps(groups))


def load_as_printed(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    """Run the lines in ``lines.txt``, which have been printed for the checkpoint."""
    from tests.checkpoints.fsdp2 import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in json.loads(Path(folder, "lines.json").read_text()):
            load(line, model, optimizer)
