"""Arguments of FSDP1 in words: what decides how a model is sharded, and no value of a tensor or text."""

from __future__ import annotations

import enum
import functools
import types
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, type(None))
_MOST = 32


def described(value: Any) -> Any:
    """``value`` as JSON has it: numbers, names of members, classes and functions, fields of configurations."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, torch.Tensor):
        return f"tensor of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, functools.partial):
        given = {str(i): described(one) for i, one in enumerate(value.args)}
        return {"partial": described(value.func), **given, **{n: described(v) for n, v in value.keywords.items()}}
    if isinstance(value, nn.Module):
        return f"module {type(value).__name__}"
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **{f.name: described(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, list | tuple | set | frozenset):
        inside = sorted(map(str, value)) if isinstance(value, set | frozenset) and not _is_ordered(value) else value
        return [described(one) for one in list(inside)[:_MOST]]
    return _of_group(value)


def _is_ordered(value: Any) -> bool:
    return all(isinstance(one, type) for one in value) or len(value) < 2


def _of_group(value: Any) -> Any:
    dist = torch.distributed
    if dist.is_available() and isinstance(value, dist.ProcessGroup):
        return {"group": dist.get_process_group_ranks(value)}
    shape = getattr(value, "mesh_dim_names", None), getattr(value, "ndim", None)
    if type(value).__name__ == "DeviceMesh":
        return {"mesh": list(value.mesh.shape), "names": shape[0]}
    return type(value).__name__
