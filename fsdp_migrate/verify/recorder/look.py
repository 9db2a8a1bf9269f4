"""Runs the preflight of ``fsdp_compat`` on the program's models, where the first optimizer step would begin."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from .orders import Orders


def look(
    models: Sequence[nn.Module], optimizer: Optimizer, orders: Orders, rank: int, sample: Sequence[torch.Tensor]
) -> None:
    """If it was ordered, write ``preflight-RANK.json``: text and plain values of each model that has run.

    ``sample``: what the latest forward got. Of several models it is not said whose it is, so that they get none.
    """
    if not orders.preflight:
        return
    preflight = importlib.import_module("fsdp_compat").preflight
    # Gradients would keep torch from filling in the optimizer's state for the trial of a save.
    optimizer.zero_grad(set_to_none=True)
    own = {id(param) for group in optimizer.param_groups for param in group["params"]}
    found = []
    for model in models:
        stepped = any(id(param) in own for param in model.parameters()) or len(models) == 1
        report = preflight(model, optimizer if stepped else None, sample=sample if len(models) == 1 else None)
        runs_by = _implementation(optimizer) if stepped else ""
        found.append({"text": str(report), **report.as_dict(), "optimizer": runs_by, "torch": torch.__version__})
    Path(orders.out).mkdir(parents=True, exist_ok=True)
    Path(orders.out, f"preflight-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def _implementation(optimizer: Optimizer) -> str:
    """How an optimizer of torch steps its parameters; "" of other optimizers."""
    given = optimizer.defaults
    if not type(optimizer).__module__.startswith("torch.optim") or "foreach" not in given:
        return ""
    if given.get("fused"):
        return "fused"
    default = next(iter(optimizer.param_groups[0]["params"])).device.type == "cuda"
    return "foreach" if (default if given["foreach"] is None else given["foreach"]) else "for-loop"
