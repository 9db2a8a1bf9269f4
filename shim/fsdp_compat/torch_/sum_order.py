"""The order in which the gradients of a unit's inputs, and those of its parameters, are added up.

FSDP2 passes each input through an autograd node of the unit, whose backward ends that of the unit. What the unit reads
more than once is added up within that node, before it meets the gradients of other readers. FSDP1 has no such node: it
waits for the parameters' gradients, or, where the unit is frozen, for those of its inputs.

Each forward of a unit reads views of FSDP1's flat parameter: what one forward reads more than once is added up by
itself, before it meets the gradients of other forwards. FSDP2 reads the parameters, where all meet as they come.
Reaches into FSDP2's private state, see :mod:`.param_groups`.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node, get_gradient_edge, register_multi_grad_hook
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from fsdp_compat.torch_.gathering import is_group_left_alone
from fsdp_compat.torch_.param_groups import param_groups

#: Of a group: what waits for the gradients of its parameters.
_WAITS = "_fsdp_compat_waits_for_gradients"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class _Waits:
    """For the gradients of all parameters of a group; the nodes that accumulate them live as long as this."""

    params: list[nn.Parameter]
    nodes: list[Node]
    handles: list[RemovableHandle]
    #: How many gradients are still to come, by the backward that runs.
    left: dict[int, int] = field(default_factory=dict)


def add_up_as_they_come(module: nn.Module) -> None:
    """Make one unit end its backward without a node on its inputs, whose gradients then add up in FSDP1's order.

    A unit of which a part is frozen keeps the node: nothing else says when its frozen parameters were read last.
    """
    for group in param_groups(module):
        by_node = group._register_post_backward_hook
        group._register_post_backward_hook = functools.partial(_begin_forward, group, by_node)
        group.post_forward = functools.partial(_end_forward, group, group.post_forward)


def _begin_forward(
    group: Any, by_node: Callable[..., Arguments], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments:
    # What is registered in a unit that is left alone is not of FSDP2.
    if not torch.is_grad_enabled() or is_group_left_alone(group):
        return args, kwargs
    passed = _end_backward_as_fsdp1(group, by_node, args, kwargs)
    # After the node, whose backward is to come when these views have passed their gradients on.
    for param in group.fsdp_params:
        _read_by_view(param)
    return passed


def _end_backward_as_fsdp1(
    group: Any, by_node: Callable[..., Arguments], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments:
    params = [param._unsharded_param for param in group.fsdp_params]
    frozen = sum(not param.requires_grad for param in params)
    if not frozen:
        _wait_for_parameters(group, params)
        return args, kwargs
    _forget(group)
    if frozen < len(params):
        return by_node(args, kwargs)
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if inputs:
        _wait_for_inputs(group, inputs)
    return args, kwargs


def _read_by_view(param: Any) -> None:
    full, info = param._unsharded_param, param._module_info
    # Other classes than torch's own may have no views.
    if not full.requires_grad or type(full) is not nn.Parameter:
        return
    view = full.view_as(full)
    for module, name in [
        (info.module, info.param_name),
        *zip(info.shared_modules, info.shared_param_names, strict=True),
    ]:
        module._parameters[name] = view
        if isinstance(module, nn.RNNBase):
            module._flat_weights[module._flat_weights_names.index(name)] = view


def _end_forward(group: Any, post_forward: Callable[..., Any], *arguments: Any) -> Any:
    for param in group.fsdp_params:
        info = param._module_info
        registered = info.module._parameters.get(info.param_name)
        if registered is not None and registered._base is param._unsharded_param:
            param._setattr_on_modules(param._unsharded_param)
    return post_forward(*arguments)


def _wait_for_parameters(group: Any, params: list[nn.Parameter]) -> None:
    waits = getattr(group, _WAITS, None)
    if waits is not None and all(map(operator.is_, waits.params, params)):
        return
    _forget(group)
    nodes = [get_gradient_edge(param).node for param in params]
    # Not the group itself: what holds a node's hook is not seen by the collector of cycles.
    accumulated = functools.partial(_accumulated, weakref.ref(group))
    setattr(group, _WAITS, _Waits(params, nodes, [node.register_hook(accumulated) for node in nodes]))


def _forget(group: Any) -> None:
    waits = vars(group).pop(_WAITS, None)
    for handle in waits.handles if waits is not None else ():
        handle.remove()


def _accumulated(group_of: Callable[[], Any], *gradients: Any) -> None:
    group = group_of()
    waits: _Waits | None = getattr(group, _WAITS, None)
    if waits is None:
        return
    backward = torch._C._current_graph_task_id()
    if backward not in waits.left:
        waits.left[backward] = sum(map(torch._C._will_engine_execute_node, waits.nodes))
    waits.left[backward] -= 1
    if not waits.left[backward]:
        del waits.left[backward]
        group.post_backward()


def _wait_for_inputs(group: Any, inputs: list[torch.Tensor]) -> None:
    def ended(_: Any) -> None:
        handle.remove()
        group.post_backward()

    handle = register_multi_grad_hook(inputs, ended)
