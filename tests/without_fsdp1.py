"""A torch without FSDP1, as a coming version may be: its names are gone, and its modules cannot be imported."""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

#: What is left of ``torch.distributed.fsdp``: FSDP2 and its own modules.
FSDP2 = frozenset(
    {
        "CPUOffloadPolicy",
        "DataParallelMeshDims",
        "FSDPModule",
        "MixedPrecisionPolicy",
        "OffloadPolicy",
        "UnshardHandle",
        "_fully_shard",
        "fully_shard",
        "register_fsdp_forward_method",
        "share_comm_ctx",
    }
)
_PACKAGE = "torch.distributed.fsdp"
_LOST = ("torch.distributed._shard", f"{_PACKAGE}.")


def block() -> None:
    """Take FSDP1 and ``torch.distributed._shard`` out of torch in this process, for everyone but torch itself.

    :raises RuntimeError: ``fsdp_compat`` is imported already, with torch's FSDP1 in it.
    """
    if is_blocked():
        return
    if any(name.partition(".")[0] == "fsdp_compat" for name in sys.modules):
        raise RuntimeError("fsdp_compat is imported before FSDP1 is taken away")
    for name in ("checkpoint.state_dict", "checkpoint.optimizer", "fsdp.sharded_grad_scaler", "tensor.parallel"):
        importlib.import_module(f"torch.distributed.{name}")
    compiler = importlib.import_module("torch._dynamo.eval_frame")
    package = importlib.import_module(_PACKAGE)
    modules = {name: module for name, module in sys.modules.items() if _is_lost(name)}
    names = {name: value for name, value in vars(package).items() if not name.startswith("__") and name not in FSDP2}
    names["__all__"] = package.__dict__["__all__"]
    for name in names:
        delattr(package, name)
    package.__dict__["__all__"] = sorted(FSDP2 - {"_fully_shard"} & vars(package).keys())
    vars(importlib.import_module("torch.distributed")).pop("_shard", None)
    sys.modules.update(dict.fromkeys(modules))  # type: ignore[arg-type]
    # The compiler would trace the imports below as a part of the program, whose modules change while it reads them.
    for function in (_import, inspect.unwrap(_put_back)):
        compiler.skip_code(function.__code__)
    # A version without FSDP1 has no function that imports it; this one has some, and they are not what is tested.
    builtins.__import__ = functools.partial(_import, builtins.__import__, modules, names)


def is_blocked() -> bool:
    """Whether :func:`block` has been called in this process."""
    return sys.modules.get(f"{_PACKAGE}.wrap", sys) is None


def _is_lost(name: str) -> bool:
    return name.startswith(_LOST) and not name.startswith(f"{_PACKAGE}._fully_shard")


def _import(
    original: Callable[..., ModuleType],
    modules: Mapping[str, ModuleType],
    names: Mapping[str, Any],
    name: str,
    importer: Mapping[str, Any] | None = None,
    *arguments: Any,
    **named: Any,
) -> ModuleType:
    by_torch = str((importer or {}).get("__name__")).partition(".")[0] == "torch"
    with _put_back(modules, names) if by_torch else contextlib.nullcontext():
        return original(name, importer, *arguments, **named)


@contextlib.contextmanager
def _put_back(modules: Mapping[str, ModuleType], names: Mapping[str, Any]) -> Iterator[None]:
    package = sys.modules[_PACKAGE]
    lost, kept = {name: sys.modules[name] for name in modules}, {**vars(package)}
    sys.modules.update(modules)
    vars(package).update(names)
    try:
        yield
    finally:
        sys.modules.update(lost)
        for name in names:
            delattr(package, name)
        vars(package).update({name: kept[name] for name in names if name in kept})
