"""A torch without FSDP1, as a coming version may be: its names are gone, and its modules cannot be imported."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
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
    lost = {name: module for name, module in sys.modules.items() if _is_lost(name)}
    whole = ModuleType(_PACKAGE)
    vars(whole).update(vars(package))
    for name in {name for name in vars(package) if not name.startswith("__")} - FSDP2:
        delattr(package, name)
    package.__dict__["__all__"] = sorted(FSDP2 - {"_fully_shard"} & vars(package).keys())
    vars(importlib.import_module("torch.distributed")).pop("_shard", None)
    sys.modules.update(dict.fromkeys(lost))  # type: ignore[arg-type]
    # The compiler would trace it as a part of the program.
    compiler.skip_code(_import.__code__)
    # A version without FSDP1 has no function that imports it; this one has some, and they are not what is tested.
    builtins.__import__ = functools.partial(_import, builtins.__import__, {**lost, _PACKAGE: whole})


def is_blocked() -> bool:
    """Whether :func:`block` has been called in this process."""
    return sys.modules.get(f"{_PACKAGE}.wrap", sys) is None


def _is_lost(name: str) -> bool:
    return name.startswith(_LOST) and not name.startswith(f"{_PACKAGE}._fully_shard")


def _import(
    original: Callable[..., ModuleType],
    whole: Mapping[str, ModuleType],
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002 - as __import__ names it
    locals: Mapping[str, Any] | None = None,  # noqa: A002 - as __import__ names it
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """``__import__``, which gives ``whole``'s modules to torch; nothing that another thread may read is changed."""
    package = str((globals or {}).get("__package__"))
    if fromlist and package.partition(".")[0] == "torch":
        found = whole.get(importlib.util.resolve_name("." * level + name, package))
        if found is not None:
            return found
    return original(name, globals, locals, fromlist, level)
