"""FSDP1's wrapping decisions, replayed without wrapping: which modules become units, in which order.

FSDP1 decides while it wraps. A callable policy is asked bottom-up with the number of elements that its children
have not claimed yet, so the decision for a parent depends on those for its children; the replay keeps that count.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from torch import nn
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.messages import warn_caller
from fsdp_compat.vocabulary import CustomPolicy, ModuleWrapPolicy, _or_policy, lambda_auto_wrap_policy

Decision: TypeAlias = Callable[..., bool]
Policy: TypeAlias = Decision | ModuleWrapPolicy | CustomPolicy
Targets: TypeAlias = dict[nn.Module, dict[str, Any]]


def chosen_modules(
    root: nn.Module,
    policy: Policy,
    ignored_modules: set[nn.Module],
    ignored_params: set[nn.Parameter],
    root_arguments: dict[str, Any],
    full_precision_classes: tuple[type[nn.Module], ...],
) -> Targets:
    """The modules below ``root`` that FSDP1 wraps, in its order, each with the arguments it is wrapped with.

    ``full_precision_classes`` become units whatever the policy says, with ``mixed_precision=None``.
    Raises ValueError if something below ``root`` is sharded already, TypeError for a policy that is not one.
    """
    _check_nothing_sharded(root)
    run_policy = getattr(policy, "_run_policy", None)
    if run_policy is not None:
        chosen: Targets = run_policy(root, ignored_modules, {**root_arguments, "auto_wrap_policy": None})
        chosen = {module: _without_policy(arguments) for module, arguments in chosen.items()}
        for module in root.modules():
            if module not in ignored_modules and isinstance(module, full_precision_classes):
                chosen[module] = {**chosen.get(module, root_arguments), "mixed_precision": None}
        return _in_post_order(root, chosen)
    if not callable(policy) or inspect.isclass(policy) or isinstance(policy, CustomPolicy):
        raise TypeError(
            f"auto_wrap_policy takes a ModuleWrapPolicy, a CustomPolicy or a function of (module, recurse, "
            f"nonwrapped_numel), not {policy!r}"
        )
    decide: Decision = policy
    if full_precision_classes:
        decide = functools.partial(
            _or_policy, policies=[policy, functools.partial(_full_precision_policy, classes=full_precision_classes)]
        )
    order: dict[nn.Module, None] = {}
    _replay(root, decide, ignored_modules, ignored_params, order, is_root=True)
    return {
        module: {**root_arguments, "mixed_precision": None}
        if isinstance(module, full_precision_classes)
        else dict(root_arguments)
        for module in order
    }


def warn_if_nothing_matches(root: nn.Module, policy: Policy) -> None:
    """Warn where ``policy``, which has chosen no module below ``root``, says by class or by rule which ones it wants.

    A policy by size chooses nothing in a small model, and one of the user's own may.
    """
    wanted = getattr(policy, "_module_classes", None)
    if isinstance(policy, functools.partial):
        wanted = policy.keywords.get("transformer_layer_cls")
        if policy.func is not lambda_auto_wrap_policy and not wanted:
            return
    elif wanted is None and not isinstance(policy, CustomPolicy):
        return
    classes = tuple(wanted or ())
    if isinstance(root, classes):
        return
    names = ", ".join(sorted(each.__name__ for each in classes))
    warn_caller(
        f"auto_wrap_policy{f' for {names}' if names else ''} matches no module in {type(root).__name__}: its "
        "parameters are one unit and are gathered together. Check its classes or its condition."
    )


def _check_nothing_sharded(root: nn.Module) -> None:
    sharded = [name or "the module itself" for name, module in root.named_modules() if isinstance(module, FSDPModule)]
    if sharded:
        raise ValueError(
            f"FSDP auto wrapping requires modules to not already have FSDP applied but found {sharded[0]} in "
            f"{type(root).__name__} ({len(sharded)} such modules). Shard either by policy or by hand: drop "
            "auto_wrap_policy, or drop the inner calls."
        )


def _without_policy(arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments.get("auto_wrap_policy") is not None:
        return arguments
    return {name: value for name, value in arguments.items() if name != "auto_wrap_policy"}


def _full_precision_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, classes: tuple[type[nn.Module], ...]
) -> bool:
    return recurse or isinstance(module, classes)


def _replay(
    module: nn.Module,
    policy: Decision,
    ignored_modules: set[nn.Module],
    ignored_params: set[nn.Parameter],
    order: dict[nn.Module, None],
    *,
    is_root: bool = False,
) -> int:
    """Add to ``order`` what is wrapped at or below ``module``; returns the number of elements wrapped."""
    numel = sum(param.numel() for param in module.parameters() if param not in ignored_params)
    if not policy(module=module, recurse=True, nonwrapped_numel=numel):
        return 0
    wrapped = sum(
        _replay(child, policy, ignored_modules, ignored_params, order)
        for child in module.children()
        if child not in ignored_modules
    )
    if is_root or not policy(module=module, recurse=False, nonwrapped_numel=numel - wrapped):
        return wrapped
    order[module] = None
    return numel


def _in_post_order(root: nn.Module, chosen: Targets) -> Targets:
    ordered: Targets = {}
    visited = {root}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if child not in visited:
                visited.add(child)
                visit(child)
        if module is not root and module in chosen:
            ordered[module] = chosen[module]

    visit(root)
    return ordered
