"""Records the first forward and backward of the program's model with the recorder of ``fsdp_compat``."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .guard import Refused
from .orders import Orders

_WRAPPERS = ("DistributedDataParallel", "DataParallel")


class Stopwatch:
    """What ``tune`` works its layouts out from; of several models that of the outermost one that runs first."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._model: nn.Module | None = None
        self._timeline: Any = None

    def begin(self, called: nn.Module) -> None:
        """The first forward of a model has begun."""
        if not self._orders.times:
            return
        model = called
        while type(model).__name__ in _WRAPPERS or "_orig_mod" in model._modules:
            model = model._modules.get("module") or model._modules["_orig_mod"]  # type: ignore[assignment]
        if self._model is not None:
            if not any(self._model is inner for inner in model.modules()):
                return
            self._timeline.finish()
        self._model = model
        try:
            self._timeline = importlib.import_module("fsdp_compat.preflight.timeline").Timeline(model)
        except NotImplementedError as error:
            raise Refused(str(error)) from error
        self._timeline.begin(called)

    def write(self, optimizer: Optimizer, rank: int) -> None:
        """If it was ordered, write ``tune-RANK.json``: nothing more is recorded.

        :raises Refused: no model has run.
        """
        if not self._orders.times:
            return
        if self._model is None:
            raise Refused("no model ran before the program's first optimizer step")
        self._timeline.finish()
        layouts = importlib.import_module("fsdp_compat.preflight.present_layout")
        first = next((each for each in self._model.parameters()), torch.empty(0))
        found = {
            **self._timeline.as_dict(),
            "layout": layouts.present_layout(self._model, self._timeline.modules),
            "optimizer": layouts.optimizer_costs(optimizer, first.device),
            "device": torch.cuda.get_device_name(first.device) if first.device.type == "cuda" else first.device.type,
        }
        Path(self._orders.out).mkdir(parents=True, exist_ok=True)
        Path(self._orders.out, f"tune-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
