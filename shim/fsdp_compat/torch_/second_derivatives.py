"""Backwards that build a graph (``create_graph=True``): what they save are the gathered parameters, which have to stay.

FSDP2 frees them after each backward, and reduces gradients only where a backward passes the output of a unit, which
that of a gradient penalty need not do. Reaches into FSDP2's private state, see :mod:`.param_groups`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fsdp_compat.torch_.param_groups import fsdp_state, groups_of

#: Of the context that all units of a model share: whether the backward that runs, or ran last, builds a graph.
_BUILDS_GRAPH = "_fsdp_compat_builds_graph"
#: Of a group that such a backward has left gathered: the versions of its sharded parameters, and its hooks.
_KEPT = "_fsdp_compat_kept_for_graph"


def keep_for_second_derivatives(module: nn.Module) -> None:
    """Make one unit stay gathered after a backward that builds a graph, until a backward without has ended.

    That one reduces all gradients, by whatever way they come to the parameters. A forward gathers again if parameters
    were changed meanwhile. Ordinary backwards and their collectives stay as they are.
    """
    state = fsdp_state(module)
    for group in groups_of(state):
        group.pre_backward = functools.partial(_pre_backward_noting_graph, state, group.pre_backward)
        group.post_backward = functools.partial(_post_backward_keeping, state, group, group.post_backward)
        group.pre_forward = functools.partial(_pre_forward_on_current_values, group, group.pre_forward)
        group.reshard = functools.partial(_reshard_unless_kept, group, group.reshard)
        group.finalize_backward = functools.partial(_finalize_releasing, state, group, group.finalize_backward)


def is_kept_for_graph(group: Any) -> bool:
    """Whether a graph may need what this group has gathered."""
    return hasattr(group, _KEPT) and group.is_unsharded


def _builds_graph(state: Any) -> bool:
    return getattr(state._state_ctx, _BUILDS_GRAPH, False)


def _pre_backward_noting_graph(state: Any, pre_backward: Callable[..., None], *arguments: Any) -> None:
    # Hooks run in the mode of the backward, unlike the callback at its end.
    setattr(state._state_ctx, _BUILDS_GRAPH, torch.is_grad_enabled())
    pre_backward(*arguments)


def _post_backward_keeping(state: Any, group: Any, post_backward: Callable[..., None], *arguments: Any) -> None:
    if not _builds_graph(state):
        post_backward(*arguments)
        return
    for param in group.fsdp_params:
        grad = param._unsharded_param.grad if hasattr(param, "_unsharded_param") else None
        if grad is not None and grad.requires_grad:
            raise RuntimeError(
                f"FSDP does not support gradients of gradients: .grad of {param._param_fqn} is part of a graph after "
                "backward(create_graph=True). Take the first derivative by torch.autograd.grad(..., "
                "create_graph=True), and call backward() without it on the result."
            )
    if group.is_unsharded and not is_kept_for_graph(group):
        _forget(group)
        begin = functools.partial(_begin_backward, state, group)
        trained = [param._unsharded_param for param in group.fsdp_params if param._unsharded_param.requires_grad]
        setattr(group, _KEPT, (_versions(group), [param.register_hook(begin) for param in trained]))
    reduces, group.reduce_grads = group.reduce_grads, False
    try:
        post_backward(*arguments)
    finally:
        group.reduce_grads = reduces


def _begin_backward(state: Any, group: Any, grad: torch.Tensor) -> None:
    """A gradient is about to come to one of the parameters, perhaps by no output of the unit."""
    if is_kept_for_graph(group):
        state._register_root_post_backward_final_callback()
        group.pre_backward(False)


def _reshard_unless_kept(group: Any, reshard: Callable[[], None]) -> None:
    if not (is_kept_for_graph(group) and group._training_state.name in ("FORWARD", "POST_BACKWARD")):
        reshard()


def _finalize_releasing(state: Any, group: Any, finalize_backward: Callable[[], None]) -> None:
    finalize_backward()
    if not _builds_graph(state) and hasattr(group, _KEPT):
        _forget(group)
        if group.reshard_after_backward:
            group.reshard()


def _pre_forward_on_current_values(group: Any, pre_forward: Callable[..., Any], *arguments: Any) -> Any:
    if is_kept_for_graph(group) and getattr(group, _KEPT)[0] != _versions(group):
        _forget(group)
        group.reshard()
    return pre_forward(*arguments)


def _versions(group: Any) -> list[tuple[int, int]]:
    return [(param.sharded_param._version, param._sharded_local_tensor._version) for param in group.fsdp_params]


def _forget(group: Any) -> None:
    _, handles = vars(group).pop(_KEPT, (None, ()))
    for handle in handles:
        handle.remove()
