"""The methods of FSDP1's class: those that need an object, and those that nothing else in torch has."""

from __future__ import annotations

from fsdp_rules.fsdp1.api import entries
from fsdp_rules.fsdp1.names import FSDP

#: What needs an object, and not the class alone: FSDP1's own, and those that it has from ``torch.nn.Module``.
METHODS = frozenset(
    {
        "__call__",
        "add_module",
        "apply",
        "bfloat16",
        "buffers",
        "check_is_root",
        "children",
        "clip_grad_norm_",
        "compile",
        "cpu",
        "cuda",
        "double",
        "eval",
        "extra_repr",
        "float",
        "forward",
        "get_buffer",
        "get_extra_state",
        "get_parameter",
        "get_submodule",
        "half",
        "ipu",
        "load_state_dict",
        "modules",
        "mtia",
        "named_buffers",
        "named_children",
        "named_modules",
        "named_parameters",
        "no_sync",
        "parameters",
        "register_backward_hook",
        "register_buffer",
        "register_comm_hook",
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_load_state_dict_post_hook",
        "register_load_state_dict_pre_hook",
        "register_module",
        "register_parameter",
        "register_state_dict_post_hook",
        "register_state_dict_pre_hook",
        "requires_grad_",
        "set_extra_state",
        "set_submodule",
        "share_memory",
        "state_dict",
        "to",
        "to_empty",
        "train",
        "type",
        "xpu",
        "zero_grad",
    }
)
#: What only FSDP1's wrapper has: no ``torch.nn.Module``, and no FSDP2 model.
OWN = (
    frozenset(entry.name for entry in entries() if entry.kind == "method" and entry.owner == FSDP)
    - (METHODS | {"__getattr__", "__getitem__", "module"})
) | {"check_is_root", "clip_grad_norm_", "no_sync", "register_comm_hook"}
#: Those of them that other libraries' objects have too, or as settings.
COMMON = frozenset({"check_is_root", "clip_grad_norm_", "no_sync", "register_comm_hook", "state_dict_type"})
