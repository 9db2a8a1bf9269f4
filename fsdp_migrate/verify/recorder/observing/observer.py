"""One process of a program that is traced: what it shows is kept in memory, and written every second."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..guard import guarded
from ..leave import leave
from ..models import is_fsdp1
from ..orders import Orders
from ..parts import clean, rank
from ..steps import Steps
from ..surroundings import environment, option_names
from .described import described
from .hooks import Hooks
from .kinds import Kinds
from .looks import Looks
from .places import Places
from .used import Used

FORMAT = "fsdp-migrate trace of a rank"
_SECONDS = 1.0


class Observer:
    """Looks and listens from the import of torch on, until ``orders.steps`` optimizer steps are over."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._places = Places(orders.observe)
        self._kinds = Kinds()
        self._used = Used()
        self._hooks = Hooks(self)
        self._looks = Looks(self._places, self._kinds, self._on_failure)
        self._reads: Counter[tuple[Any, ...]] = Counter()
        self._statics: Counter[tuple[Any, ...]] = Counter()
        self._wraps: list[dict[str, Any]] = []
        self._optimizers: list[dict[str, Any]] = []
        self._built: list[weakref.ref[Optimizer]] = []
        self._versions: dict[str, Any] = {}
        self._depths: Counter[int] = Counter()
        self._notes: dict[str, str] = {}
        self._steps_done = 0
        self._ended = "running"
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self.spent = 0.0
        self.is_on = True

    def listen(self) -> None:
        """Put everything in place."""
        self._hooks.listen()
        self._steps = Steps(self)
        if problem := self._looks.start():
            self._notes["lines"] = problem
        off = weakref.WeakMethod(self._off)
        os.register_at_fork(after_in_child=lambda: (method := off()) and method())
        atexit.register(self.close)
        threading.Thread(target=self._save_often, daemon=True, name="fsdp-migrate").start()

    def fsdp1_loaded(self) -> None:
        """The program has imported FSDP1's class."""
        if self.is_on:
            self._hooks.fsdp1_loaded()

    def _off(self) -> None:
        """In a fork: it is another process, and none of the ranks unless it imports torch itself."""
        self.is_on = False
        self._looks.stop()
        self._hooks.give_back()

    @guarded
    def on_read(self, model: nn.Module, name: str) -> None:
        """See :class:`Hooks`. Only reads by code of the project itself count."""
        frame = sys._getframe(3)
        source = self._places.source(frame.f_code.co_filename)
        if source is not None:
            state = _state_type(model) if "state_dict" in name else ""
            self._reads[source.path, self._places.position(frame), name, state] += 1

    @guarded
    def on_static(self, name: str, model: object) -> None:
        """See :class:`Hooks`."""
        where = self._places.where(3)
        if where is not None:
            held = self._kinds.of(model)
            state = _state_type(model) if isinstance(model, nn.Module) else ""
            key = (*where, name, held, state)
            self._statics[key] += 1

    def before_wrap(self, module: nn.Module) -> Any:
        """BatchNorm, meta, dtypes and optimizers as they are before any unit is made."""
        if not self.is_on:
            return None
        try:
            parameters = list(module.parameters())
            ids = {id(one) for one in parameters}
            early = [number for number, ref in enumerate(self._built) if _holds(ref(), ids)]
            norms = torch.nn.modules.batchnorm._BatchNorm
            return {
                "class": type(module).__name__,
                "batch norm": [clean(name) for name, one in module.named_modules() if isinstance(one, norms)],
                "meta": any(one.is_meta for one in parameters),
                "dtypes": sorted({_short(one.dtype) for one in parameters}),
                "frozen": sum(not one.requires_grad for one in parameters),
                "parameters": len(parameters),
                "tied": _tied(module),
                "buffers": sorted({_short(one.dtype) for one in module.buffers() if one.is_floating_point()}),
                "optimizers before": early,
            }
        except Exception:
            self._on_failure()
            return None

    @guarded
    def after_wrap(self, model: nn.Module, arguments: dict[str, Any], before: Any) -> None:
        """See :class:`Hooks`."""
        self._kinds.on_wrap(model)
        self._used.on_wrap(len(self._wraps), model)
        # At its end the program may have left the group of all ranks.
        self._versions = _versions()
        where = self._places.where(3)
        self._wraps.append(
            {
                "at": _at(where),
                "arguments": {name: described(value) for name, value in arguments.items()},
                "units": [clean(name) for name, one in model.named_modules() if is_fsdp1(one)],
                "strategy": getattr(model.__dict__.get("sharding_strategy"), "name", None),
                "original parameters": bool(model.__dict__.get("_use_orig_params")),
                **(before or {}),
            }
        )

    @guarded
    def on_optimizer(self, optimizer: Optimizer) -> None:
        """See :class:`Hooks`."""
        self._built.append(weakref.ref(optimizer))
        self._optimizers.append(
            {
                "at": _at(self._places.where(3)),
                "class": type(optimizer).__name__,
                "groups": len(optimizer.param_groups),
                "kind": self._kinds.of(optimizer),
            }
        )

    @guarded
    def on_gradient(self, handle: Any) -> None:
        """See :class:`Hooks`."""
        self._used.on_gradient(handle)

    @guarded
    def on_compile(self) -> None:
        """See :class:`Hooks`."""
        self._hooks.no_reads()
        self._notes["compile"] = "torch.compile was called: attribute reads after it are known only by name"

    @guarded
    def enter(self, optimizer: Optimizer) -> None:
        """A step begins, or one inside of it."""
        self._depths[id(optimizer)] += 1

    @guarded
    def before_step(self, optimizer: Optimizer) -> None:
        """Gradients are there."""

    @guarded
    def after_step(self, optimizer: Optimizer) -> None:
        """A step is over."""
        self._depths[id(optimizer)] -= 1
        if self._depths[id(optimizer)] > 0:
            return
        self._steps_done += 1
        self._used.on_step(optimizer)
        self._looks.renew()
        number = max(1, len({id(one) for ref in self._built if (one := ref()) is not None}))
        if self._orders.stop and self._steps_done >= self._orders.steps * number:
            self._end("steps")
            leave()

    def _on_failure(self) -> None:
        self.fail(traceback.format_exc())

    def fail(self, reason: str) -> None:
        """Give up, and write why."""
        self._notes["failed"] = reason
        self._end("failed")

    def close(self) -> None:
        """The program is over."""
        atexit.unregister(self.close)
        if self.is_on and os.getpid() == self._pid:
            self._end("over")

    def _end(self, why: str) -> None:
        self.is_on = False
        self._ended = why
        self._looks.stop()
        self._hooks.give_back()
        self._steps.remove()
        self._save()

    def _save_often(self) -> None:
        while self.is_on:
            time.sleep(_SECONDS)
            if self.is_on and os.getpid() == self._pid:
                self._save()

    def _save(self) -> None:
        """Write all that was seen, in place of what was written before; nothing of a launcher, which runs no code."""
        if not self._places.sources:
            return
        with self._writing:
            target = Path(self._orders.out, f"observed-{_rank()}-{self._pid}.json")
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_suffix(".part")
            beside.write_text(json.dumps(self._record(), separators=(",", ":")), encoding="utf-8")
            beside.replace(target)

    def _record(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "rank": _rank(),
            "argv": [*map(os.path.basename, sys.argv[:1]), *option_names(sys.argv[1:])],
            "steps": self._steps_done,
            "ended": self._ended,
            "notes": dict(self._notes),
            "of this node": int(os.environ.get("LOCAL_WORLD_SIZE", "0")),
            "versions": self._versions or _versions(),
            "files": {source.path: self._file(source) for source in self._places.sources},
            "reads": [[*key, number] for key, number in list(self._reads.items())],
            "statics": [[*key, number] for key, number in list(self._statics.items())],
            "wraps": [{**wrap, **self._used.of(number)} for number, wrap in enumerate(list(self._wraps))],
            "optimizers": list(self._optimizers),
        }

    @staticmethod
    def _file(source: Any) -> dict[str, Any]:
        lines = list(source.lines.items())
        chains = {id(one): one for _, found in lines for line in list(found) for one in line.chains}
        return {
            "sha256": source.digest,
            "lines": {number: sum(line.runs for line in found) for number, found in lines},
            "values": [[*one.position, dict(one.kinds)] for one in chains.values() if one.kinds],
        }


def _rank() -> int:
    dist = torch.distributed
    started = dist.is_available() and dist.is_initialized()
    return rank() if started else int(os.environ.get("RANK", "0"))


def _versions() -> dict[str, Any]:
    told = environment()
    return {name: told[name] for name in ("python", "torch", "cuda", "device", "world size", "backend")}


def _at(where: tuple[str, tuple[int, int, int, int]] | None) -> list[Any] | None:
    return None if where is None else [where[0], *where[1]]


def _holds(optimizer: Optimizer | None, ids: set[int]) -> bool:
    return optimizer is not None and any(id(p) in ids for group in optimizer.param_groups for p in group["params"])


def _tied(module: nn.Module) -> list[list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(clean(name))
    return [found for found in names.values() if len(found) > 1]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _state_type(model: nn.Module) -> str:
    """The type of state in force for ``model``, and what its configuration sets apart from the default."""
    kept = model.__dict__
    kind = getattr(kept.get("_state_dict_type"), "name", "")
    config = kept.get("_state_dict_config")
    told = [f"{n}={v}" for n, v in sorted(vars(config).items()) if v and not n.startswith("_")] if config else []
    return " ".join((kind, *told))
