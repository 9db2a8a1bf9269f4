"""Whether all ranks hold the same optimizer state, before they gather it: gathers that differ hang or mix up values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

States: TypeAlias = Mapping[str, Mapping[str, Any]]
_Summary: TypeAlias = dict[str, dict[str, str]]


def check_agreement(states: States, meshes: Iterable[DeviceMesh]) -> None:
    """Raise RuntimeError if the ranks of one of ``meshes`` do not have the same ``states``. A collective.

    ``states`` are by parameter and by key. Of DTensors dtype and shape have to agree, of everything else the value.
    """
    summary = {name: {key: _summary(value) for key, value in state.items()} for name, state in states.items()}
    for mesh in meshes:
        for dimension in range(mesh.ndim):
            if mesh.size(dimension) > 1:
                gathered: list[_Summary] = [{} for _ in range(mesh.size(dimension))]
                dist.all_gather_object(gathered, summary, group=mesh.get_group(dimension))
                _compare(gathered)


def _compare(gathered: list[_Summary]) -> None:
    first = gathered[0]
    for rank, other in enumerate(gathered[1:], start=1):
        for has, lacks, who in ((first, other, rank), (other, first, 0)):
            missing = sorted(has.keys() - lacks.keys())
            if missing:
                raise RuntimeError(
                    "FSDP currently requires each rank to have at least the optimizer states needed by rank 0's "
                    "optimizer but some ranks are missing some of those states: rank "
                    f"{who} of the group has none for {missing[0]}. Give the optimizers of all ranks the same "
                    "parameters, and step them together."
                )
        for name, state in first.items():
            for key in sorted(state.keys() | other[name].keys()):
                if state.get(key) != other[name].get(key):
                    raise RuntimeError(
                        f"the optimizer state {key} of {name} is {state.get(key)} on rank 0 and {other[name].get(key)} "
                        f"on rank {rank} of the group, so the ranks have no common state. Save it sharded: "
                        "StateDictType.SHARDED_STATE_DICT."
                    )


def _summary(value: Any) -> str:
    if isinstance(value, DTensor):
        return f"a DTensor of {value.dtype}, {tuple(value.shape)}"
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.dim() == 0:
        return repr(value.item())
    data = value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return f"a tensor of {value.dtype}, {tuple(value.shape)}, {hashlib.sha256(data).hexdigest()[:12]}"
