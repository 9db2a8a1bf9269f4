"""Finding the FSDP2 units of a model, and what each of them manages."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.planning.records import record_of
from fsdp_compat.torch_.param_groups import is_nested

_WRAPPER_PREFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def clean_name(name: str) -> str:
    """A parameter's name without what FSDP1, activation checkpointing and torch.compile put into it."""
    for prefix in _WRAPPER_PREFIXES:
        name = name.replace(prefix, "")
    return name


def fsdp_modules(module: nn.Module, root_only: bool = False) -> list[nn.Module]:
    """All FSDP2 units at and below ``module``; with ``root_only`` those that lie in no other unit of ``module``.

    FSDP1's static method of that name, which finds nothing in an FSDP2 model. Differs in that ``root_only`` goes by
    the module tree and so does not force the lazy initialisation.
    """
    if not root_only:
        return [part for part in module.modules() if isinstance(part, FSDPModule)]
    return list(_outermost(module))


def _outermost(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, FSDPModule):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def is_root(module: nn.Module) -> bool:
    """Whether no sharded module is known to lie around ``module``."""
    record = record_of(module)
    return (record is None or record.is_root) and not (isinstance(module, FSDPModule) and is_nested(module))


def check_root(module: nn.Module, message: str) -> None:
    """Raise RuntimeError with ``message`` if ``module`` is a unit inside another one."""
    if not is_root(module):
        raise RuntimeError(message)
