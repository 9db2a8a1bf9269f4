"""The units of a model, the places of its parameters, and their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from torch import nn
from torch.distributed.fsdp import FSDPModule

# A place registers a parameter: module._parameters[name]. Unlike the parameter it survives materialisation.
Place: TypeAlias = tuple[nn.Module, str]

_HIDDEN_PREFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_WRAPPER_PREFIXES = (*_HIDDEN_PREFIXES, "_orig_mod.")


def clean_name(name: str) -> str:
    """A parameter's name without what FSDP1, activation checkpointing and torch.compile put into it."""
    for prefix in _WRAPPER_PREFIXES:
        name = name.replace(prefix, "")
    return name


def saved_name(name: str) -> str:
    """A parameter's name as FSDP1 has it in states: with what torch.compile puts into it."""
    for prefix in _HIDDEN_PREFIXES:
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


def parameter_at(place: Place) -> nn.Parameter:
    """The parameter registered there now."""
    module, name = place
    param = module._parameters[name]
    if param is None:
        raise RuntimeError(f"the parameter {name!r} of {type(module).__name__} has been removed")
    return param
