"""Answers for the GPUs of a program that runs without one: its devices are the CPU, and NCCL is gloo.

Code of torch and of installed packages but accelerate is not answered where it asks whether there is a GPU. What was
answered is written down, by the line of the program that asked.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .lifted import fsdp1_on_cpu

_CPU = torch.device("cpu")
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
_HERE = str(Path(__file__).resolve().parent)
_INSTALLED = (
    *(sysconfig.get_path(each) for each in ("stdlib", "purelib", "scripts")),
    str(Path(torch.__file__).parents[1]),
    "<",
)
#: Installed packages that shard where they find a GPU, and elsewhere ignore what they were configured with.
_ANSWERED = frozenset({"accelerate"})
#: Functions of torch.cuda that need no answer but a value.
_VALUES: dict[str, Any] = {
    "current_device": 0,
    "device_count": 1,
    "get_device_capability": (8, 0),
    "get_device_name": "CPU",
    "is_bf16_supported": True,
    "max_memory_allocated": 0,
    "max_memory_reserved": 0,
    "memory_allocated": 0,
    "memory_reserved": 0,
    **dict.fromkeys(("empty_cache", "init", "ipc_collect", "reset_max_memory_allocated", "reset_peak_memory_stats")),
    **dict.fromkeys(("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all")),
    **dict.fromkeys(("set_device", "set_per_process_memory_fraction", "synchronize")),
}
#: Memory that is given back when the process ends.
_kept = contextlib.ExitStack()
_said: set[tuple[str, int, str]] = set()
_out = ""
#: Where the program was started.
_here = Path.cwd().resolve()


def answer(out: str) -> None:
    """Begin, in a process that has just imported torch; ``out``: the folder for what was answered."""
    global _out
    _out = out
    for name, value in _VALUES.items():
        setattr(torch.cuda, name, _always(name, value))
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.get_rng_state_all = lambda: [torch.get_rng_state()]
    available = torch.cuda.is_available
    torch.cuda.is_available = lambda: _asks("torch.cuda.is_available") or available()
    torch.cuda.Stream = torch.cuda.Event = _Nothing  # type: ignore[misc,assignment]
    for name in ("current_stream", "default_stream"):
        setattr(torch.cuda, name, lambda *_: _Nothing())
    torch.cuda.stream = lambda *_: contextlib.nullcontext()  # type: ignore[assignment]
    torch.cuda.device = lambda *_: contextlib.nullcontext()  # type: ignore[misc,assignment]
    _given(torch.autocast, "device_type", "cpu")
    _given(torch.amp.GradScaler, "device", "cpu")
    _given(torch.nn.Module, "device", _CPU, "to")
    _given(torch, "map_location", _CPU, "load")
    _distributed()
    _kept.enter_context(_Devices())
    if _FSDP1 in sys.modules:
        fsdp1_loaded()


def fsdp1_loaded() -> None:
    """The program has imported FSDP1's class, which is to compute on the CPU whether it was given a device or not."""
    _kept.enter_context(fsdp1_on_cpu())
    _given(sys.modules[_FSDP1].FullyShardedDataParallel, "device_id", _CPU, always=True)


def helpers_loaded() -> None:
    """The program has imported ``fsdp_compat``."""
    mesh = importlib.import_module("fsdp_compat.planning.mesh")
    if hasattr(mesh, "_existing"):
        _given(mesh, "device", _CPU, "_existing")


class _Nothing:
    """A stream or an event: nothing waits for it, and no time passes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: Any) -> None:
        return

    def elapsed_time(self, other: object) -> float:
        """In milliseconds."""
        return 0.0

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def __getattr__(self, name: str) -> Callable[..., _Nothing]:
        return lambda *_, **__: self


class _Devices(TorchFunctionMode):
    """Takes the CPU for each GPU that a function of torch is given."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            _asks(f"Tensor.{function.__name__}")
            return args[0]
        if "device" in kwargs and _is_gpu(kwargs["device"]):
            kwargs["device"] = _CPU
        if function is torch.device and args and isinstance(args[0], int) and _is_gpu(args[0]):
            return _CPU
        # The first argument of ``to`` may be a device by its number or name.
        by_name = function is torch.Tensor.to and len(args) > 1 and _is_gpu(args[1])
        args = tuple(
            _CPU if (isinstance(each, torch.device) and each.type == "cuda") or (by_name and number == 1) else each
            for number, each in enumerate(args)
        )
        return function(*args, **kwargs)


def _is_gpu(given: object) -> bool:
    """Whether something that names a device names a GPU."""
    if isinstance(given, torch.device):
        found = given.type == "cuda"
    elif isinstance(given, str):
        found = given.partition(":")[0] == "cuda"
    else:
        found = isinstance(given, int) and not isinstance(given, bool)
    if found:
        _asks(f"device {given}")
    return found


def _always(name: str, value: Any) -> Callable[..., Any]:
    def answered(*_: Any, **__: Any) -> Any:
        _asks(f"torch.cuda.{name}")
        return value

    return answered


def _given(owner: Any, name: str, value: Any, method: str = "__init__", *, always: bool = False) -> None:
    """Give ``method`` the ``value`` for its argument ``name`` in place of a GPU; ``always``: also where it has none."""
    original = getattr(owner, method)
    if getattr(original, "_answered", False):
        return
    parameters = [*inspect.signature(original).parameters]
    # A method that takes what it is given apart by itself: a device comes first.
    place = parameters.index(name) if name in parameters else 1

    @functools.wraps(original)
    def with_cpu(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place and _is_gpu(args[place]):
            args = (*args[:place], value, *args[place + 1 :])
        elif len(args) <= place and (always or (name in kwargs and _is_gpu(kwargs[name]))):
            if kwargs.get(name) is None:
                _asks(f"{owner.__name__} without {name}")
            elif always:
                _is_gpu(kwargs[name])
            kwargs[name] = value
        return original(*args, **kwargs)

    with_cpu._answered = True  # type: ignore[attr-defined]
    setattr(owner, method, with_cpu)


def _distributed() -> None:
    import torch.distributed as dist
    from torch.distributed import device_mesh

    for name in ("init_process_group", "new_group"):
        setattr(dist, name, _with_gloo(getattr(dist, name), name))
    _given(device_mesh.DeviceMesh, "device_type", "cpu")
    _given(device_mesh, "device_type", "cpu", "init_device_mesh")
    vars(dist)["init_device_mesh"] = device_mesh.init_device_mesh
    barrier, all_reduce = dist.barrier, dist.all_reduce

    @functools.wraps(barrier)
    def without_devices(*args: Any, device_ids: Any = None, **kwargs: Any) -> Any:
        return barrier(*args, **kwargs)

    @functools.wraps(all_reduce)
    def averaged(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        # Before torch 2.10 gloo knows no average.
        if op != dist.ReduceOp.AVG or async_op:
            return all_reduce(tensor, op, group, async_op)
        _asks("ReduceOp.AVG")
        done = all_reduce(tensor, dist.ReduceOp.SUM, group)
        tensor.div_(dist.get_world_size(group))
        return done

    dist.barrier, dist.all_reduce = without_devices, averaged


def _with_gloo(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_gloo(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind_partial(*args, **kwargs)
        if "nccl" in str(bound.arguments.get("backend")):
            _asks(f"{name}({bound.arguments['backend']})")
            bound.arguments["backend"] = "gloo"
        bound.arguments.pop("device_id", None)
        return original(*bound.args, **bound.kwargs)

    return on_gloo


def _asks(what: str) -> bool:
    """Whether code of the program asks, or accelerate for it, which is written down once for each line."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is not None and frame.f_code.co_filename.startswith(_HERE) and what.startswith("torch.cuda."):
        # The recorder itself describes the machine.
        return False
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return False
    if frame.f_code.co_filename.startswith(_INSTALLED):
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _ANSWERED:
            return False
        while frame is not None and frame.f_code.co_filename.startswith(_INSTALLED):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None:
            return True
    file = Path(frame.f_code.co_filename).resolve()
    said = (str(file.relative_to(_here)) if file.is_relative_to(_here) else str(file), frame.f_lineno, what)
    if said not in _said and os.environ.get("RANK", "0") == "0":
        _said.add(said)
        Path(_out).mkdir(parents=True, exist_ok=True)
        with Path(_out, "on-cpu.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(said) + "\n")
    return True
