"""Templates of the fixtures' models, and the elements of tensors in a state."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from fixtures.checkpoints.model import build
from fixtures.checkpoints.odd import build_odd
from fsdp_migrate.checkpoints.convert.flat.template import Template, read_template
from fsdp_migrate.checkpoints.convert.state import State
from fsdp_migrate.checkpoints.entries import TensorEntry
from fsdp_migrate.checkpoints.read import elements
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint, open_all


def model_of(name: str) -> nn.Module:
    """The model that the checkpoint ``name`` is of."""
    return build_odd(frozen=True) if name.startswith("odd") else build()


def as_json(model: nn.Module, folder: Path, tied: bool = True, buffers: bool = True) -> Template:
    """Its parameters as JSON; without further names of tied ones where ``tied`` is not set."""
    first: dict[nn.Parameter, str] = {}
    told: dict[str, Any] = {
        name: list(value.shape) if first.setdefault(value, name) == name else first[value]
        for name, value in model.named_parameters(remove_duplicate=not tied)
    }
    told |= dict.fromkeys(dict(model.named_buffers())) if buffers else {}
    (folder / "template.json").write_text(json.dumps(told))
    return read_template(folder / "template.json")


def as_state_dict(model: nn.Module, folder: Path) -> Template:
    """Its state dict as a file of ``torch.save``."""
    torch.save(model.state_dict(), folder / "template.pt")
    return read_template(folder / "template.pt")


def as_copies(model: nn.Module, folder: Path) -> Template:
    """Its state dict without shared storages, as FSDP1 gathers it."""
    state = model.state_dict()
    copies = OrderedDict((name, value.clone()) for name, value in state.items())
    copies._metadata = state._metadata  # type: ignore[attr-defined]
    torch.save(copies, folder / "template.pt")
    return read_template(folder / "template.pt")


def as_safetensors(model: nn.Module, folder: Path) -> Template:
    """Its state dict as safetensors, which have no order."""
    save_file({name: value.clone() for name, value in model.state_dict().items()}, folder / "template.safetensors")
    return read_template(folder / "template.safetensors")


def only(path: Path) -> Checkpoint:
    """The one checkpoint at ``path``."""
    (found,) = open_all(path)
    assert found.problems == ()
    return found


def state_of(checkpoint: Checkpoint) -> State:
    """The state that a conversion starts with."""
    return State(checkpoint.entries, checkpoint.sequences)


def tensor(entry: object) -> torch.Tensor:
    """The tensor that an entry describes."""
    assert isinstance(entry, TensorEntry)
    return torch.frombuffer(bytearray(elements.whole(entry)), dtype=getattr(torch, entry.dtype)).reshape(entry.shape)
