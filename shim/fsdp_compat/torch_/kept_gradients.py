"""Gradients that are cleared between a forward and its backward, which FSDP1 keeps in units that stay gathered.

With ``use_orig_params=True`` and SHARD_GRAD_OP, FSDP1 does not look at the ``.grad`` of the original parameters while a
unit is gathered: the unit has one gradient of its own. The root drops that as its forward or backward starts, where no
parameter of the unit has a gradient any more; a unit whose backward starts before the root's adds to it.

What a unit has for a gradient FSDP1 sets aside as a backward reaches it, to add the new one to it. Where all of the
unit is frozen by then there is none, and the old one waits for the next backward. Reaches into FSDP2's private state,
see :mod:`.param_groups`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fsdp_compat.torch_.gradients import reduced_gradient
from fsdp_compat.torch_.param_groups import fsdp_state, groups_of

#: Of a group: the gradients of its parameters as they were after its forward.
_WAITING = "_fsdp_compat_waiting_gradients"
#: Of a group: the gradients that its parameters had as a backward reached it, where all of them were frozen.
_ASIDE = "_fsdp_compat_gradients_aside"


def keep_cleared_gradients(module: nn.Module, *, gathered_while_training: bool) -> None:
    """Make one unit treat gradients that are set to None between its forward and its backward as FSDP1 does.

    ``gathered_while_training``: FSDP1 keeps the unit gathered there, with its original parameters in use. Other units,
    and those that a single rank shards, drop at any time what is set to None.
    """
    state = fsdp_state(module)
    state._pre_backward = functools.partial(_begin_backward, state, state._pre_backward)
    for group in groups_of(state):
        if gathered_while_training and group.mesh_info.shard_mesh_size > 1:
            group.pre_forward = functools.partial(_before_forward, group, group.pre_forward)
            group.post_forward = functools.partial(_after_forward, group, group.post_forward)
            group.pre_backward = functools.partial(_put_back, group, group.pre_backward)


def keep_frozen_gradients(module: nn.Module) -> None:
    """Make one unit add the gradients that it has when a backward runs through it frozen to its next ones.

    FSDP1 does with one flat parameter, and where it keeps the unit gathered; never where a single rank shards it.
    """
    for group in groups_of(fsdp_state(module)):
        if group.mesh_info.shard_mesh_size > 1:
            group.pre_backward = functools.partial(_set_aside, group, group.pre_backward)


def _set_aside(group: Any, pre_backward: Callable[..., None], *arguments: Any) -> None:
    params = [param.sharded_param for param in group.fsdp_params]
    if any(param.requires_grad for param in params):
        aside = vars(group).pop(_ASIDE, ())
        for param, gradient in zip(params, aside if _has_no_gradient(group) else (), strict=False):
            param.grad = gradient
    elif not _has_no_gradient(group):
        setattr(group, _ASIDE, [param.grad for param in params])
        for param in params:
            param.grad = None
    pre_backward(*arguments)


def _before_forward(group: Any, pre_forward: Callable[..., Any], *arguments: Any) -> Any:
    if not group.is_unsharded:
        vars(group).pop(_WAITING, None)
    return pre_forward(*arguments)


def _after_forward(group: Any, post_forward: Callable[..., Any], *arguments: Any) -> Any:
    is_recomputing = torch._C._current_graph_task_id() != -1
    if not is_recomputing and (not hasattr(group, _WAITING) or _has_no_gradient(group)):
        setattr(group, _WAITING, [*map(reduced_gradient, group.fsdp_params)])
    return post_forward(*arguments)


def _begin_backward(state: Any, pre_backward: Callable[[torch.Tensor], Any], gradient: torch.Tensor) -> Any:
    if state._is_root:
        for group in (group for each in state._state_ctx.all_states for group in groups_of(each)):
            if _has_no_gradient(group):
                vars(group).pop(_WAITING, None)
    return pre_backward(gradient)


def _put_back(group: Any, pre_backward: Callable[..., None], *arguments: Any) -> None:
    for param, gradient in zip(group.fsdp_params, vars(group).pop(_WAITING, ()), strict=False):
        if param.sharded_param.grad is None:
            param.sharded_param.grad = gradient
    pre_backward(*arguments)


def _has_no_gradient(group: Any) -> bool:
    return all(param.sharded_param.grad is None for param in group.fsdp_params)
