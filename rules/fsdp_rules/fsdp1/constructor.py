"""What FSDP1's constructor takes, and the objects that hold some of it."""

from __future__ import annotations

#: The parameters by their places; those that come last are given by name.
PARAMETERS = (
    *("module", "process_group", "sharding_strategy", "cpu_offload", "auto_wrap_policy", "backward_prefetch"),
    *("mixed_precision", "ignored_modules", "param_init_fn", "device_id", "sync_module_states", "forward_prefetch"),
    *("limit_all_gathers", "use_orig_params", "ignored_states", "device_mesh", "ignored_parameters"),
)
#: Those that are flags, by their defaults; the default of all others, `backward_prefetch` aside, is None.
ON, OFF = frozenset({"limit_all_gathers"}), frozenset({"sync_module_states", "forward_prefetch", "use_orig_params"})
#: The fields of the classes whose objects some of them take, by their places.
FIELDS = {
    "CPUOffload": ("offload_params",),
    "MixedPrecision": ("param_dtype", "reduce_dtype", "buffer_dtype"),
}
