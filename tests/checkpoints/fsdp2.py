"""A program of FSDP2 that loads a checkpoint, with the line of code that it is told to load it with."""

from __future__ import annotations

import glob
import warnings
from typing import Any


def fresh(mesh: Any) -> tuple[Any, Any]:
    """The model of the fixtures, all of its parameters zero, under ``fully_shard`` on ``mesh``, and its optimizer."""
    import torch
    from torch.distributed.fsdp import fully_shard

    from fixtures.checkpoints.model import build, optimizer_for

    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, optimizer_for(model)


def load(code: str, model: Any, optimizer: Any) -> None:
    """Run ``code``, which has the names that it takes for imported."""
    import safetensors.torch
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.distributed.tensor
    from torch.distributed.checkpoint import state_dict as functions

    names = {name: getattr(functions, name) for name in functions.__all__}
    names |= {"dcp": dcp, "dist": dist, "torch": torch, "safetensors": safetensors, "glob": glob}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code, {**names, "model": model, "optimizer": optimizer})


def gathered(model: Any, optimizer: Any) -> dict[str, Any]:
    """The state of both, whole, on every rank."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        states, optimizer_states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    return {"model": states, "optim": optimizer_states}
