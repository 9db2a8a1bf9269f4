"""Which parameters the modules of a unit register: FSDP1 has one of each, FSDP2 a sharded and a gathered one.

Code that looks at a model between its forwards (``zero_grad``, an optimizer, averages, norms, counts, freezing) finds
the sharded ones under FSDP1. Reaches into FSDP2's private state, see :mod:`.param_groups`.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.torch_.gathering import is_group_left_alone
from fsdp_compat.torch_.param_groups import fsdp_state, groups_of, param_groups
from fsdp_compat.torch_.second_derivatives import is_kept_for_graph

#: The attribute of a group that has the flags of its parameters as they were when it was gathered.
_FLAGS = "_fsdp_compat_requires_grad"
#: Of a group: whether it is gathered while its modules register the sharded parameters.
_HIDDEN = "_fsdp_compat_hidden"
#: Of a group: whether what is gathered stays registered from a forward to the backward. Others are not touched.
_STAYS = "_fsdp_compat_stays_registered"


def register_sharded(module: nn.Module, *, gathered_while_training: bool) -> None:
    """Make one unit register its sharded parameters whenever no forward or backward runs, gathered or not.

    FSDP2 keeps the root gathered after its forward, and other units by ``reshard_after_forward=False``; a backward may
    never follow. They stay gathered, as under FSDP1, and register what is gathered again for the next use. With
    ``gathered_while_training`` that stays registered after a forward with gradients, as FSDP1 has it under
    SHARD_GRAD_OP with ``use_orig_params=True``. Where a single rank shards, as under NO_SHARD, what is gathered is a
    copy that FSDP1 does not have and that would not follow the parameter: it is freed after the forward.
    """
    state = fsdp_state(module)
    groups = groups_of(state)
    for group in groups:
        setattr(group, _STAYS, gathered_while_training)
        group.wait_for_unshard = functools.partial(_register_gathered_after, group, group.wait_for_unshard)
        group.post_forward = functools.partial(_post_forward, state, group.post_forward)
        group.pre_backward = functools.partial(_begin_backward, state, group.pre_backward)
        group.post_backward = functools.partial(_register_sharded_after, group, group.post_backward)
        register = functools.partial(_register_state_hooks, group, group._register_state_dict_hooks)
        group._register_state_dict_hooks = register
    if not groups:
        # Called at the end of a forward too: for want of a group only.
        call = functools.partial(_without_warning_of_views, state._register_pre_backward_hook)
        state._register_pre_backward_hook = functools.partial(_post_forward, state, call)


def still_gathered(module: nn.Module) -> dict[int, torch.Tensor]:
    """What one unit has gathered and not freed, by the identities of its sharded parameters.

    FSDP1 saves and summons that, and not what the shards were changed to since.
    """
    return {
        id(param.sharded_param): param._unsharded_param
        for group in param_groups(module)
        if _is_read(group) and not is_group_left_alone(group)
        for param in group.fsdp_params
    }


def _is_read(group: Any) -> bool:
    """Whether what is gathered is what FSDP1 reads; in another dtype it gathers again, and frees both."""
    return bool(group.is_unsharded) and all(
        param._unsharded_param.dtype == param.sharded_param.dtype for param in group.fsdp_params
    )


@contextlib.contextmanager
def kept_gathered(module: nn.Module) -> Iterator[dict[int, torch.Tensor]]:
    """What one unit has gathered at entry is so again at exit, and registers what is sharded, as in FSDP1.

    Gives a copy of :func:`still_gathered`; what the caller leaves in it is what is gathered afterwards. A collective
    where something was gathered.
    """
    gathered = [group for group in param_groups(module) if _is_read(group)]
    values = {key: value.detach().clone() for key, value in still_gathered(module).items()}
    yield values
    for group in gathered:
        group.unshard()
        group.wait_for_unshard()
        for param in group.fsdp_params:
            if (value := values.get(id(param.sharded_param))) is not None:
                # As FSDP2's own gather writes it: a backward may still come that has saved it.
                with torch.no_grad(), torch.autograd.grad_mode._unsafe_preserve_version_counter(param._unsharded_param):
                    param._unsharded_param.copy_(value)
        _hide(group)


def _register_state_hooks(group: Any, register: Callable[[], None]) -> None:
    """FSDP2 frees what is gathered before a state dict is taken, FSDP1 keeps it for the next forward."""
    register()
    handles = group._module_to_pre_save_state_dict_hook_handle
    for module, handle in handles.items():
        handle.remove()
        handles[module] = module.register_state_dict_pre_hook(functools.partial(_before_saving, group))


def show_sharded(module: nn.Module) -> None:
    """Make a unit register its sharded parameters. What it has gathered stays so if the shim made it, as in FSDP1."""
    if not all(hasattr(group, _STAYS) for group in param_groups(module)):
        assert isinstance(module, FSDPModule)
        module.reshard()
        return
    for group in param_groups(module):
        _before_saving(group)


def _before_saving(group: Any, *_: Any) -> None:
    if _is_read(group):
        _hide(group)
    else:
        group._to_sharded()


def _without_warning_of_views(call: Callable[..., Any], output: Any) -> Any:
    """``call``, silent where ``output`` is a view: a unit without parameters has no gather that could be skipped."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view tensor")
        return call(output)


def _post_forward(state: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    output = call(*arguments)
    is_recomputing = torch._C._current_graph_task_id() != -1
    # Inside a forward code may use parameters of units that have run, as that of an output layer tied to an input.
    if state._state_ctx.iter_forward_root is not state or is_recomputing:
        return output
    groups = [group for each in state._state_ctx.all_states for group in groups_of(each)]
    for group in groups:
        if not hasattr(group, _STAYS) or is_group_left_alone(group):
            continue
        if group.mesh_info.shard_mesh_size == 1 and not is_kept_for_graph(group):
            group._to_sharded()
        elif not (getattr(group, _STAYS) and torch.is_grad_enabled()):
            _hide(group)
    setattr(state._state_ctx, _HIDDEN, [group for group in groups if hasattr(group, _HIDDEN)])
    return output


def _register_gathered_after(group: Any, wait: Callable[[], None]) -> None:
    wait()
    _show(group)


def _begin_backward(state: Any, pre_backward: Callable[..., None], *arguments: Any) -> None:
    # All of them, since what checkpoints recompute may use parameters of any unit.
    for group in vars(state._state_ctx).pop(_HIDDEN, ()):
        _show(group)
    pre_backward(*arguments)


def _register_sharded_after(group: Any, post_backward: Callable[..., None], *arguments: Any) -> None:
    post_backward(*arguments)
    _hide(group)


def _hide(group: Any) -> None:
    if not group.is_sharded and not is_group_left_alone(group):
        _take_flags(group)
        for param in group.fsdp_params:
            param._setattr_on_modules(param.sharded_param)
        setattr(group, _HIDDEN, True)


def _show(group: Any) -> None:
    if vars(group).pop(_HIDDEN, False) and group.is_unsharded and not is_group_left_alone(group):
        for param in group.fsdp_params:
            param._setattr_on_modules(param._unsharded_param)


def keep_requires_grad(module: nn.Module) -> None:
    """Make one unit heed a change of ``requires_grad`` while it is gathered, as after a forward without a backward.

    FSDP1 has one parameter, whose flag it is. FSDP2 has two, whichever is registered, and forgets what was set on
    the gathered one with the next reshard; what was set on the sharded one it heeds with the next gathering only.
    """
    for group in param_groups(module):
        group._to_unsharded = functools.partial(_to_unsharded_noting, group, group._to_unsharded)
        group._to_sharded = functools.partial(_after_taking_flags, group, group._to_sharded)
        group.pre_forward = functools.partial(_after_taking_flags, group, group.pre_forward)


def _to_unsharded_noting(group: Any, to_unsharded: Callable[[], None]) -> None:
    to_unsharded()
    vars(group).pop(_HIDDEN, None)
    _note_flags(group)


def _note_flags(group: Any) -> None:
    setattr(group, _FLAGS, [param.sharded_param.requires_grad for param in group.fsdp_params])


def _after_taking_flags(group: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    _take_flags(group)
    return call(*arguments)


def _take_flags(group: Any) -> None:
    if not (group.is_unsharded and hasattr(group, _FLAGS)) or is_group_left_alone(group):
        return
    for param, before in zip(group.fsdp_params, getattr(group, _FLAGS), strict=True):
        full, sharded = param._unsharded_param, param.sharded_param
        if full.requires_grad != sharded.requires_grad:
            changed = full.requires_grad if sharded.requires_grad == before else sharded.requires_grad
            full.requires_grad_(changed)
            sharded.requires_grad_(changed)
    _note_flags(group)
