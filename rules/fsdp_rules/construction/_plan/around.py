"""The statements before and after sharding that do what FSDP1 did in passing: the device, rank 0's values, buffers."""

from __future__ import annotations

from fsdp_rules.construction._plan.meshes import device_type
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code


def device_lines(plan: ShardPlan, file: File, code: Code) -> list[str]:
    """What makes the device of ``device_id`` the current one."""
    device = plan.device
    if not device.set_current or device.value is None:
        return []
    value = code(device.value)
    call = f"{file.ref('torch.cuda.set_device')}({value})"
    if device.kind == "cuda":
        return [call]
    # torch.cuda.set_device takes no device without an index, which means the current one.
    index = f"{value}.index" if device.is_device else f"{file.ref('torch.device')}({value}).index"
    return [f'if {device_type(device, file, code)} == "cuda" and {index} is not None:', f"    {call}"]


def sync_lines(plan: ShardPlan, tensors: str, mesh: str | None, file: File, code: Code) -> list[str]:
    """What gives ``tensors`` on all ranks of the mesh the values of its first one."""
    if plan.sync is None:
        return []
    broadcast = file.ref("torch.distributed.broadcast")
    tensor = file.fresh(plan.module, "tensor", "parameter_or_buffer")
    source = file.fresh(plan.module, "synced", "synced_tensor")
    place = code(plan.device.value) if plan.device.value is not None else f"{tensor}.device"
    lines = [
        f"for {tensor} in {tensors}:",
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


def _group(plan: ShardPlan, mesh: str | None, code: Code) -> str:
    """The group to broadcast in, whose first rank has the values."""
    assert plan.mesh_value is not None
    text = code(plan.mesh_value)
    if "(" not in text:
        return text
    two = plan.mesh == "replicated" or (plan.strategy is not None and "NO_SHARD" in plan.strategy.kinds.values())
    return f"{mesh}.get_group(0)" if two else f"{mesh}.get_group()"


def buffer_lines(plan: ShardPlan, root: str, policy: str | None, file: File, code: Code) -> list[str]:
    """What casts the buffers to the dtype that the MixedPrecision has for them."""
    precision = plan.precision
    if precision is None:
        return []
    dtype = precision.fields.get("buffer_dtype")
    if precision.value is not None and policy is not None:
        text = policy
    elif precision.buffers_like is not None:
        text = f"{policy}.{precision.buffers_like}"
    elif dtype is not None:
        text = code(dtype)
    else:
        return []
    buffer = file.fresh(plan.module, "buffer", "float_buffer")
    lines = [
        f"for {buffer} in {root}.buffers():",
        f"    if {buffer}.is_floating_point():",
        f"        {buffer}.data = {buffer}.to({text})",
    ]
    if not precision.optional and precision.value is None:
        return lines
    return [f"if {text} is not None:", *[f"    {line}" for line in lines]]
