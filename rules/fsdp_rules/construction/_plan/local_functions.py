"""Functions that the output gets once in a file, where fully_shard has no argument for what FSDP1 decides by itself."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.own_names import (
    BY_FIELDS,
    BY_NAME,
    BY_POLICY,
    BY_SIZE,
    REFUSES_EARLY,
    SUMMARIES,
    is_written,
    own_name,
)
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.wrap_given import may_give
from fsdp_rules.model.wrapping import is_factory
from fsdp_rules.verdict.diagnosis import Edit, InsertBefore

#: The attribute of parameters that fully_shard has replaced.
REPLACED = "is_replaced"
#: FSDP1's default for ``min_num_params``.
DEFAULT = "int(1e8)"


def by_size(file: File) -> list[Edit]:
    """The function that selects units by size, as FSDP1's size_based_auto_wrap_policy does."""
    name = own_name(BY_SIZE, file)
    kinds = [
        file.ref(f"torch.nn.{name}", everywhere=True) for name in ("MultiheadAttention", "ModuleList", "ModuleDict")
    ]
    return defined(
        BY_SIZE,
        f'''def {name}(module, min_num_params):
    """{SUMMARIES[BY_SIZE]} outside of smaller units, and how many all units hold."""
    numel = sum(parameter.numel() for parameter in module.parameters())
    if numel < min_num_params or isinstance(module, {kinds[0]}):
        return [], 0
    parts = [{name}(child, min_num_params) for child in module.children()]
    units = [unit for part, _ in parts for unit in part]
    held = sum(count for _, count in parts)
    if numel - held < min_num_params or isinstance(module, ({kinds[1]}, {kinds[2]})):
        return units, held
    return [*units, module], numel''',
        file,
    )


def by_policy(file: File) -> list[Edit]:
    """The function that asks a policy from elsewhere about each module, in FSDP1's order and with FSDP1's counts."""
    name = own_name(BY_POLICY, file)
    module = file.ref("torch.nn.Module", everywhere=True)
    return defined(
        BY_POLICY,
        f'''def {name}(module, policy, is_root=True):
    """{SUMMARIES[BY_POLICY]}, children first, and how many parameters they hold."""
    numel = sum(parameter.numel() for parameter in module.parameters())
    if policy is None or not policy(module=module, recurse=True, nonwrapped_numel=numel):
        return [], 0
    parts = [{name}(child, policy, False) for child in module.children()]
    units = [unit for part, _ in parts for unit in part]
    held = sum(count for _, count in parts)
    if is_root or not policy(module=module, recurse=False, nonwrapped_numel=numel - held):
        return units, held
    never_called = type(module).forward is {module}.forward  # a list of layers: FSDP1 works if all in it is in units
    return [*units, *([] if never_called else [module])], numel''',
        file,
    )


def by_name(file: File) -> list[Edit]:
    """The function that maps the names of FSDP1's strategies, where any of them may be configured."""
    name = own_name(BY_NAME, file)
    init = file.ref("torch.distributed.device_mesh.init_device_mesh", everywhere=True)
    world = file.ref("torch.distributed.get_world_size", everywhere=True)
    module = file.ref("torch.get_device_module", everywhere=True)
    if may_give("device_mesh", file):
        signature = "name, device_type, mesh=None"
        on_given = """
    if mesh is not None and name != "NO_SHARD":
        return {**kwargs, "mesh": mesh}
    if mesh is not None and mesh.size() != world:
        raise ValueError("NO_SHARD on a mesh of some ranks")"""
    else:
        signature, on_given = "name, device_type", ""
    return defined(
        BY_NAME,
        f'''def {name}({signature}):
    """{SUMMARIES[BY_NAME]} called ``name``."""
    world, per_node = {world}(), {module}(device_type).device_count()
    kwargs = {{"reshard_after_forward": False}} if name in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2") else {{}}
    if name not in ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "NO_SHARD"):
        raise ValueError(f"no sharding strategy is called {{name!r}}"){on_given}
    if name in ("FULL_SHARD", "SHARD_GRAD_OP"):
        return {{**kwargs, "mesh": {init}(device_type, (world,))}}
    shape = (world, 1) if name == "NO_SHARD" else (world // per_node, per_node)
    return {{**kwargs, "mesh": {init}(device_type, shape, mesh_dim_names=("replicate", "shard"))}}''',
        file,
    )


def by_fields(file: File) -> list[Edit]:
    """The function that reads the fields of a MixedPrecision that comes from elsewhere."""
    name = own_name(BY_FIELDS, file)
    policy = file.ref("torch.distributed.fsdp.MixedPrecisionPolicy", everywhere=True)
    return defined(
        BY_FIELDS,
        f'''def {name}(mixed_precision):
    """{SUMMARIES[BY_FIELDS]}, that of its units, and the dtype of the buffers."""
    if mixed_precision is None:
        return {policy}(), {policy}(), None
    if mixed_precision.keep_low_precision_grads:
        raise ValueError("fully_shard keeps no gradients in low precision")
    param_dtype, casts = mixed_precision.param_dtype, mixed_precision.cast_forward_inputs
    dtypes = {{"param_dtype": param_dtype, "reduce_dtype": mixed_precision.reduce_dtype or param_dtype}}
    root = {policy}(**dtypes, cast_forward_inputs=casts or mixed_precision.cast_root_forward_inputs)
    return root, {policy}(**dtypes, cast_forward_inputs=casts), mixed_precision.buffer_dtype''',
        file,
    )


def refuses_early(file: File) -> list[Edit]:
    """The hook that stops an optimizer with parameters that fully_shard has replaced, and its registration."""
    name = own_name(REFUSES_EARLY, file)
    register = file.ref("torch.optim.optimizer.register_optimizer_step_pre_hook", everywhere=True)
    return defined(
        REFUSES_EARLY,
        f'''def {name}(optimizer, args, kwargs):
    """{SUMMARIES[REFUSES_EARLY]}: fully_shard replaced these parameters."""
    held = (param for group in optimizer.param_groups for param in group["params"])
    if any(getattr(param, "{REPLACED}", False) for param in held):
        raise RuntimeError("optimizer built before fully_shard: build it afterwards")


{register}({name})''',
        file,
    )


def lines_of(edits: Iterable[Edit]) -> int:
    """How many lines the functions among ``edits`` have."""
    inserted = [edit for edit in edits if isinstance(edit, InsertBefore)]
    return sum(edit.build(lambda node: "").count("\n") + 1 for edit in inserted)


def defined(kind: str, text: str, file: File) -> list[Edit]:
    """The edit that puts the function above the first wrap of the file; none where the file has it already."""
    if is_written(own_name(kind, file), SUMMARIES[kind], file):
        return []
    wraps = (call for call in file.nodes(cst.Call) if file.fsdp1(call.func) in (FSDP, "wrap") or is_factory(call, file))
    first = next(wraps)
    outermost = file.statement(first)
    for ancestor in file.ancestors(first):
        if isinstance(ancestor, cst.BaseCompoundStatement):
            outermost = ancestor
    return [InsertBefore(outermost, lambda code: text)]
