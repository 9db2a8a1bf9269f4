"""The models of the program and what their parameters are called, however they are wrapped and sharded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .parts import Part, clean, flat_parts, plain_part, without_cut


@dataclass(frozen=True)
class Named:
    """One parameter of a model and this rank's part of it; ``names`` has more than one where it is tied."""

    root: int
    names: tuple[str, ...]
    part: Part
    tensor: torch.Tensor

    @property
    def key(self) -> str:
        return f"{self.root}:{self.names[0]}"


def is_fsdp1(module: nn.Module) -> bool:
    """Whether torch's FSDP1 wraps something in ``module``."""
    return any(c.__name__ == "FullyShardedDataParallel" and c.__module__.startswith("torch.") for c in _mro(module))


def is_fsdp2(module: nn.Module) -> bool:
    """Whether ``module`` is a unit of ``fully_shard``."""
    return any(c.__name__ == "FSDPModule" and c.__module__.startswith("torch.") for c in _mro(module))


def _mro(module: nn.Module) -> tuple[type, ...]:
    return type(module).__mro__


def fsdp2_groups(module: Any) -> list[Any]:
    """The communication groups of one FSDP2 unit."""
    state = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def plain_class(module: nn.Module) -> str:
    """The name of the class that the module had before it was wrapped or sharded."""
    while True:
        inner = next((m for n in ("_fsdp_wrapped_module", "_orig_mod", "module") if (m := _child(module, n))), None)
        if inner is None:
            break
        module = inner
    classes = [c.__name__ for c in _mro(module)]
    return classes[classes.index("FSDPModule") + 1] if "FSDPModule" in classes else classes[0]


def _child(module: nn.Module, name: str) -> nn.Module | None:
    if name == "module" and type(module).__name__ not in ("DistributedDataParallel", "DataParallel"):
        return None
    child = module._modules.get(name)
    return child if isinstance(child, nn.Module) else None


def module_names(root: nn.Module) -> dict[int, str]:
    """The clean name of every module of ``root``, by identity."""
    wraps = _child(root, "module") is not None
    return {id(module): _clean(name, wraps) for name, module in root.named_modules()}


def _clean(name: str, wraps: bool) -> str:
    return clean(name.removeprefix("module").removeprefix(".") if wraps else name)


def named_parameters(root: nn.Module, number: int) -> list[Named]:
    """Every parameter of ``root`` once; those of a flat parameter one by one, each with the flat tensor."""
    modules = module_names(root)
    wraps = _child(root, "module") is not None
    found = [*_of_fsdp1(root, number, modules), *_of_fsdp2(root, number, modules)]
    covered = {name for named in found for name in named.names} | {str(id(named.tensor)) for named in found}
    others: dict[int, tuple[torch.Tensor, list[str]]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        cleaned = _clean(name, wraps)
        if cleaned not in covered and str(id(parameter)) not in covered:
            others.setdefault(id(parameter), (parameter, []))[1].append(cleaned)
    found += [Named(number, tuple(names), plain_part(tensor), tensor) for tensor, names in others.values()]
    order = {name: index for index, name in enumerate(_clean(n, wraps) for n, _ in _all_names(root))}
    return sorted(found, key=lambda named: order.get(named.names[0], len(order)))


def _all_names(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for prefix, module in root.named_modules(remove_duplicate=False):
        for name in module._parameters:
            yield f"{prefix}.{name}" if prefix else name, module


def _of_fsdp1(root: nn.Module, number: int, modules: dict[int, str]) -> Iterator[Named]:
    for module in root.modules():
        handle = getattr(module, "_handle", None) if is_fsdp1(module) else None
        if handle is None:
            continue
        flat = handle.flat_param
        prefix = modules[id(module)]
        parts = list(flat_parts(handle, _least_rank(handle.process_group)))
        aliases = _aliases(flat, modules, prefix)
        originals = flat._params if handle._use_orig_params else [None] * len(parts)
        for (fqn, part), original in zip(parts, originals, strict=True):
            names = (_join(prefix, fqn), *aliases.get(_join(prefix, fqn), ()))
            if original is None:
                yield Named(number, names, part, flat)
            elif handle.uses_sharded_strategy:
                yield Named(number, names, without_cut(part), original)
            else:
                yield Named(number, names, plain_part(original), original)


def _aliases(flat: Any, modules: dict[int, str], prefix: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for info in flat._shared_param_infos:
        first = _join(modules.get(id(info.prim_module), _join(prefix, info.prim_module_name)), info.prim_param_name)
        other = _join(modules.get(id(info.module), _join(prefix, info.module_name)), info.param_name)
        found.setdefault(first, []).append(other)
    return found


def _least_rank(group: Any) -> int:
    return int(min(sys.modules["torch.distributed"].get_process_group_ranks(group)))


def _of_fsdp2(root: nn.Module, number: int, modules: dict[int, str]) -> Iterator[Named]:
    for module in root.modules():
        for group in fsdp2_groups(module) if is_fsdp2(module) else ():
            for param in group.fsdp_params:
                info = param._module_info
                shared = zip(info.shared_modules, info.shared_param_names, strict=True)
                places = ((info.module, info.param_name), *shared)
                names = [_join(modules[id(owner)], name) for owner, name in places if id(owner) in modules]
                if names:
                    yield Named(number, tuple(names), plain_part(param.sharded_param), param.sharded_param)


def _join(prefix: str, name: str) -> str:
    return f"{clean(prefix)}.{clean(name)}" if clean(prefix) else clean(name)
