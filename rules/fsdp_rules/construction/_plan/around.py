"""The statements before and after sharding that do what FSDP1 did in passing: the device, rank 0's values, buffers."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.construction._plan.expert import lines_behind
from fsdp_rules.construction._plan.local_functions import REPLACED
from fsdp_rules.construction._plan.meshes import device_type
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.construction._plan.policy_text import at_margin
from fsdp_rules.file.expressions import last_name, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.model.run_evidence import seen_wrap

#: The first torch whose FSDP2 reduces zeros for unused parameters, as FSDP1 does.
REDUCES_UNUSED = (2, 13)


def reduces_unused(call: cst.Call, file: File) -> bool:
    """Whether the output makes torch reduce zeros for parameters that a step of the model does not use."""
    return file.settings.torch >= REDUCES_UNUSED and not uses_all(call, file)


def uses_all(call: cst.Call, file: File) -> bool:
    """Whether a traced run shows that each step uses all trained parameters of the models that ``call`` wraps."""
    shown = seen_wrap(call, file)
    return shown is not None and shown.steps > 0 and not shown.unused


def unused_lines(call: cst.Call, root: str, file: File) -> list[str]:
    """What gives parameters that a step does not use FSDP1's zeros, where torch can."""
    if not reduces_unused(call, file):
        return []
    return [f"{root}.set_reduce_scatter_unused_params(True)"]


def prefetch_lines(plan: ShardPlan, root: str, file: File) -> list[str]:
    """What makes each unit gather the next one early in forward, in the order in which the model has them."""
    if plan.layout is not None and plan.layout.planned is not None:
        return lines_behind(plan, root, file)
    if not plan.prefetches or plan.selector is None:
        return []
    units = file.fresh(plan.call, "units", "fsdp_units", "sharded_units")
    part = file.fresh(plan.call, "part", "unit", "fsdp_unit")
    following = file.fresh(plan.call, "following", "next_unit", "following_unit")
    kind = file.ref("torch.distributed.fsdp.FSDPModule")
    return [
        f"{units} = [{part} for {part} in {root}.modules() if isinstance({part}, {kind})]",
        f"for {part}, {following} in zip({units}, {units}[1:]):",
        f"    {part}.set_modules_to_forward_prefetch([{following}])",
    ]


def device_lines(plan: ShardPlan, file: File, code: Code) -> list[str]:
    """What makes the device of ``device_id`` the current one."""
    device = plan.device
    if not device.set_current or device.value is None:
        return []
    value = code(device.value)
    call = f"{file.ref('torch.cuda.set_device')}({value})"
    if device.kind == "cuda":
        return [call]
    if device.kind == "unset":
        return [f"if {value} is not None:", f"    {call}"]
    # torch.cuda.set_device takes no device without an index, which means the current one.
    index = f"{value}.index" if device.is_device else f"{file.ref('torch.device')}({value}).index"
    return [f'if {device_type(device, file, code)} == "cuda" and {index} is not None:', f"    {call}"]


def marked(module: cst.BaseExpression, root: str, value: bool, file: File) -> list[str]:
    """What marks the parameters of ``root`` as replaced before sharding, and those that it has afterwards as not."""
    param = file.fresh(module, "param", "parameter", "sharded_param")
    return [f"for {param} in {root}.parameters():", f"    {param}.{REPLACED} = {value}"]


def may_have_units(plan: ShardPlan, file: File) -> bool:
    """Whether parts of the model may be sharded by then, by another wrap or an earlier turn of this one."""
    module = plan.module
    place = (file.path, file.span(plan.call).line)
    if len(file.project.wraps) > 1 or place in file.project.values.nested:
        return True
    if sum(where[:2] == place and len(where) > len(place) for where in file.project.values.wraps) > 1:
        # Several calls run the one that wraps.
        return True
    if any(isinstance(node, cst.For | cst.While) for node in file.ancestors(module)):
        return True
    function = file.function(module)
    return function is not None and any(
        last_name(call.func) == function.name.value for call in file.inside(function, cst.Call)
    )


def _skipping_shards(tensor: str, file: File) -> list[str]:
    # FSDP1 sends the values of a unit when it makes it: those of an inner unit have been sent.
    return [f"    if isinstance({tensor}, {file.ref('torch.distributed.tensor.DTensor')}):", "        continue"]


def sync_lines(
    plan: ShardPlan, tensors: str, mesh: str | None, file: File, code: Code, ignored: str | None = None
) -> list[str]:
    """What gives ``tensors``, the ``ignored`` ones left out, on all ranks of the mesh the values of its first one."""
    if plan.sync is None:
        return []
    broadcast = file.ref("torch.distributed.broadcast")
    tensor = file.fresh(plan.module, "tensor", "parameter_or_buffer")
    source = file.fresh(plan.module, "synced", "synced_tensor")
    place = code(plan.device.value) if plan.device.value is not None else f"{tensor}.device"
    lines = [
        f"for {tensor} in {tensors}:",
        *([f"    if {tensor} in {ignored}:", "        continue"] if ignored is not None else []),
        *(_skipping_shards(tensor, file) if not plan.on_meta and may_have_units(plan, file) else []),
        f"    {source} = {tensor}.detach().to({place})",
    ]
    group = plan.mesh_value
    if plan.mesh == "groups" or (plan.mesh == "given" and mesh is not None):
        each = file.fresh(plan.module, "group", "mesh_group")
        lines += [
            f"    for {each} in {mesh}.get_all_groups():",
            f"        {broadcast}({source}, group={each}, group_src=0)",
        ]
    elif plan.mesh in ("group", "replicated") and group is not None:
        lines.append(f"    {broadcast}({source}, group={_group(plan, mesh, code)}, group_src=0)")
    else:
        lines.append(f"    {broadcast}({source}, src=0)")
    lines.append(f"    {tensor}.detach().copy_({source})")
    if literal_bool(plan.sync) is True:
        return lines
    return [f"if {code(plan.sync)}:", *[f"    {line}" for line in lines]]


def all_tensors(root: str, file: File) -> str:
    """The parameters and buffers of ``root``."""
    return f"{file.ref('itertools.chain')}({root}.parameters(), {root}.buffers())"


def ignored_lines(plan: ShardPlan, file: File, code: Code) -> tuple[list[str], str | None, str | None]:
    """What collects the ignored parameters, their name, and that of the modules that never become units."""
    if plan.ignored is None:
        return [], None, None
    params = file.fresh(plan.module, "ignored_params", "ignored_parameters", "params_left_out")
    listed = at_margin(code(plan.ignored))
    if not isinstance(file.objects.origin(plan.ignored), cst.List | cst.ListComp | cst.SetComp | cst.Set | cst.Tuple):
        listed = f"{listed} or ()"
    if not plan.ignores_modules:
        return [f"{params} = set({listed})"], params, None
    listed = f"({listed})" if listed.endswith(" or ()") else listed
    part = file.fresh(plan.module, "module", "submodule", "part")
    if not plan.selector and not has_buffer_dtype(plan):
        each = f"for {part} in {listed} for parameter in {part}.parameters()"
        return [f"{params} = {{parameter {each}}}"], params, None
    modules = file.fresh(plan.module, "ignored", "left_out", "ignored_parts")
    lines = [
        f"{modules} = {{part for {part} in {listed} for part in {part}.modules()}}",
        f"{params} = {{parameter for {part} in {modules} for parameter in {part}.parameters(recurse=False)}}",
    ]
    return lines, params, modules


def _group(plan: ShardPlan, mesh: str | None, code: Code) -> str:
    """The group to broadcast in, whose first rank has the values."""
    assert plan.mesh_value is not None
    text = code(plan.mesh_value)
    if "(" not in text:
        return text
    two = plan.mesh == "replicated" or (plan.strategy is not None and "NO_SHARD" in plan.strategy.names)
    return f"{mesh}.get_group(0)" if two else f"{mesh}.get_group()"


def has_buffer_dtype(plan: ShardPlan) -> bool:
    """Whether the buffers may have to be cast."""
    precision = plan.precision
    return precision is not None and (
        "buffer_dtype" in precision.fields or precision.buffers_like is not None or precision.value is not None
    )


def buffer_lines(
    plan: ShardPlan, root: str, policy: str | None, file: File, code: Code, ignored: str | None = None
) -> list[str]:
    """What casts the buffers outside of ``ignored`` modules to the dtype that the MixedPrecision has for them."""
    precision = plan.precision
    if precision is None:
        return []
    dtype = precision.fields.get("buffer_dtype")
    test = ""
    if precision.value is not None and policy is not None:
        text = f"{policy}.buffer_dtype" if precision.plain else policy
        test = f"{policy} is not None and " if precision.plain else ""
    elif precision.buffers_like is not None:
        text = f"{policy}.{precision.buffers_like}"
    elif dtype is not None:
        text = code(dtype)
    else:
        return []
    buffer = file.fresh(plan.module, "buffer", "float_buffer")
    held = f"{root}.buffers()"
    if ignored is not None:
        held = f"[entry for part in {root}.modules() if part not in {ignored} for entry in part.buffers(recurse=False)]"
    lines = [
        f"for {buffer} in {held}:",
        f"    if {buffer}.is_floating_point():",
        f"        {buffer}.data = {buffer}.to({text})",
    ]
    if not precision.optional and precision.value is None:
        return lines
    return [f"if {test}{text} is not None:", *[f"    {line}" for line in lines]]
