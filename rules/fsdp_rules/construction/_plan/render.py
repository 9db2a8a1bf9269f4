"""From a finished plan to the statements that a person would have written."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import literal_bool
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.printing import call_text, indent
from fsdp_rules.file.tree import Code
from fsdp_rules.verdict.diagnosis import Build, Edit, Replace, ReplaceStatement


@dataclass(frozen=True)
class Place:
    """Where a call stands: the statement around it and the form of that statement."""

    statement: cst.CSTNode
    form: str
    target: str = ""


def place_of(call: cst.Call, file: File) -> Place | None:
    """The statement in which ``call`` is the whole value, or None when it is part of a larger expression."""
    parent = file.parent(call)
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1 and parent.value is call:
        target = parent.targets[0].target
        if dotted(target) is not None:
            return Place(parent, "assign", file.code(target))
    if isinstance(parent, cst.AnnAssign) and parent.value is call and dotted(parent.target) is not None:
        return Place(parent, "annotated", file.code(parent.target))
    if isinstance(parent, cst.Return):
        return Place(parent, "return")
    if isinstance(parent, cst.Expr):
        return Place(parent, "bare")
    return None


def render_native(plan: ShardPlan, file: File) -> list[Edit] | None:
    """The edits that turn the planned call into ``fully_shard`` calls, or None where no statement can be put."""
    renderer = _Renderer(plan, file)
    place = place_of(plan.call, file)
    if place is None or place.form == "annotated":
        return None if renderer.needs_statements else [Replace(plan.call, renderer.expression)]
    if place.form == "assign" or renderer.needs_statements or renderer.makes_mesh:
        return [ReplaceStatement(place.statement, renderer.statements(place))]
    return [Replace(plan.call, renderer.expression)]


class _Renderer:
    def __init__(self, plan: ShardPlan, file: File) -> None:
        self.plan = plan
        self.file = file
        self.module = plan.arguments.get("module")
        self.fully_shard = file.ref("torch.distributed.fsdp.fully_shard")
        self.buffer_dtype = plan.precision.fields.get("buffer_dtype") if plan.precision else None
        device = plan.device
        self.needs_mesh = plan.mesh is not None or device.kind in ("cpu", "unknown")
        self.makes_mesh = self.needs_mesh and plan.mesh != "given"
        self.needs_statements = bool(
            plan.selector
            or plan.sync is not None
            or self.buffer_dtype is not None
            or device.set_current
            or plan.mesh in ("hybrid", "no_shard")
        )

    def expression(self, code: Code) -> str:
        """The whole call as one expression."""
        assert self.module is not None
        arguments = [code(self.module), *self._arguments(code, self._mesh(code), root=True)]
        return f"{self.fully_shard}({', '.join(arguments)})"

    def statements(self, place: Place) -> Build:
        """The statements for ``place``."""

        def build(code: Code) -> str:
            return "\n".join(self._lines(place, code))

        return build

    def _lines(self, place: Place, code: Code) -> list[str]:
        module = self.module
        assert module is not None
        text = code(module)
        lines: list[str] = []
        if place.form == "assign" and place.target != text:
            if dotted(module) is not None:
                root = text
            else:
                root = place.target
                lines.append(f"{root} = {text}")
        elif dotted(module) is None:
            root = self.file.fresh(module, "model", "wrapped_model", "sharded_model")
            lines.append(f"{root} = {text}")
        else:
            root = text
        lines += self._device(code)
        lines += self._sync(root, code)
        mesh = self._mesh(code)
        if mesh is not None and (self.plan.mesh == "hybrid" or (self.plan.selector and "(" in mesh)):
            name = self.file.fresh(module, "mesh", "device_mesh", "shard_mesh")
            lines += self._hybrid_lines(name, code) if self.plan.mesh == "hybrid" else [f"{name} = {mesh}"]
            mesh = name
        policy = None
        if self.plan.precision is not None and self.plan.precision.variable is None and self.plan.selector:
            policy = self.file.fresh(module, "mp_policy", "mixed_precision_policy", "shard_mp_policy")
            lines.append(f"{policy} = {self._policy(code)}")
        lines += self._units(root, mesh, policy, code)
        call = call_text(self.fully_shard, [root, *self._arguments(code, mesh, root=True, policy=policy)])
        if self.buffer_dtype is not None and place.form == "return":
            lines += [call, *self._buffers(root, code), f"return {root}"]
            return lines
        if place.form == "return":
            lines.append(f"return {call}")
        elif place.form == "assign" and place.target != root:
            lines.append(f"{place.target} = {call}")
        else:
            lines.append(call)
        return lines + self._buffers(root, code)

    def _units(self, root: str, mesh: str | None, policy: str | None, code: Code) -> list[str]:
        if not self.plan.selector:
            return []
        assert self.module is not None
        unit = self.plan.unit or self.file.fresh(self.module, "module", "submodule", "unit")
        test = self.plan.selector.format(
            module=unit, **{f"n{i}": code(n) for i, n in enumerate(self.plan.selector_nodes)}
        )
        call = call_text(self.fully_shard, [unit, *self._arguments(code, mesh, root=False, policy=policy)])
        return [
            f"for {unit} in reversed(list({root}.modules())):",
            f"    if {test} and {unit} is not {root}:",
            indent(indent(call)),
        ]

    def _arguments(self, code: Code, mesh: str | None, *, root: bool, policy: str | None = None) -> list[str]:
        plan = self.plan
        arguments: list[str] = []
        if mesh is not None:
            arguments.append(f"mesh={mesh}")
        if plan.precision is not None:
            arguments.append(f"mp_policy={self._mp(code, root=root, policy=policy)}")
        if plan.reshard_after_forward is not None:
            arguments.append(f"reshard_after_forward={plan.reshard_after_forward}")
        if plan.offload:
            arguments.append(f"offload_policy={self.file.ref('torch.distributed.fsdp.CPUOffloadPolicy')}()")
        return arguments

    def _casts(self, *, root: bool) -> bool:
        precision = self.plan.precision
        assert precision is not None
        own = bool(precision.flag("cast_forward_inputs", False))
        return own or (root and self.plan.root and bool(precision.flag("cast_root_forward_inputs", True)))

    def _mp(self, code: Code, *, root: bool, policy: str | None) -> str:
        precision = self.plan.precision
        assert precision is not None
        casts = self._casts(root=root)
        name = policy or precision.variable
        if name is None:
            return self._policy(code, casts)
        if casts:
            return name
        return f"{self.file.ref('dataclasses.replace')}({name}, cast_forward_inputs=False)"

    def _policy(self, code: Code, casts: bool = True) -> str:
        assert self.plan.precision is not None
        return policy_text(self.plan.precision.fields, self.file, code, casts)

    def _device_type(self, code: Code) -> str:
        device = self.plan.device
        if device.kind == "unknown" and device.value is not None:
            text = code(device.value)
            return f"{text}.type" if device.is_device else f"{self.file.ref('torch.device')}({text}).type"
        if device.kind == "cuda":
            return '"cuda"'
        if device.kind == "cpu":
            return '"cpu"'
        return f"{self.file.ref('torch.accelerator.current_accelerator')}().type"

    def _world(self) -> str:
        return f"{self.file.ref('torch.distributed.get_world_size')}()"

    def _mesh(self, code: Code) -> str | None:
        plan = self.plan
        if plan.mesh == "given" and plan.mesh_value is not None:
            return code(plan.mesh_value)
        if not self.needs_mesh:
            return None
        init = self.file.ref("torch.distributed.device_mesh.init_device_mesh")
        kind = self._device_type(code)
        if plan.mesh == "no_shard":
            return call_text(init, [kind, f"({self._world()}, 1)", 'mesh_dim_names=("replicate", "shard")'])
        return f"{init}({kind}, ({self._world()},))"

    def _hybrid_lines(self, name: str, code: Code) -> list[str]:
        assert self.module is not None
        init = self.file.ref("torch.distributed.device_mesh.init_device_mesh")
        kind = self._device_type(code)
        per_node = self.file.fresh(self.module, "per_node", "devices_per_node")
        count = (
            f"{self.file.ref('torch.cuda.device_count')}()"
            if self.plan.device.kind == "cuda"
            else f"{self.file.ref('torch.get_device_module')}({kind}).device_count()"
        )
        shape = f"({self._world()} // {per_node}, {per_node})"
        mesh = call_text(init, [kind, shape, 'mesh_dim_names=("replicate", "shard")'])
        return [f"{per_node} = {count}", f"{name} = {mesh}"]

    def _device(self, code: Code) -> list[str]:
        device = self.plan.device
        if not device.set_current or device.value is None:
            return []
        text = code(device.value)
        call = f"{self.file.ref('torch.cuda.set_device')}({text})"
        if device.kind == "cuda":
            return [call]
        return [f'if {self._device_type(code)} == "cuda":', f"    {call}"]

    def _sync(self, root: str, code: Code) -> list[str]:
        sync = self.plan.sync
        if sync is None:
            return []
        chain = self.file.ref("itertools.chain")
        broadcast = self.file.ref("torch.distributed.broadcast")
        assert self.module is not None
        tensor = self.file.fresh(self.module, "tensor", "parameter_or_buffer")
        source = self.file.fresh(self.module, "synced", "synced_tensor")
        device = self.plan.device
        place = code(device.value) if device.value is not None else f"{tensor}.device"
        lines = [
            f"for {tensor} in {chain}({root}.parameters(), {root}.buffers()):",
            f"    {source} = {tensor}.detach().to({place})",
            f"    {broadcast}({source}, src=0)",
            f"    {tensor}.detach().copy_({source})",
        ]
        if literal_bool(sync) is True:
            return lines
        return [f"if {code(sync)}:", *[f"    {line}" for line in lines]]

    def _buffers(self, root: str, code: Code) -> list[str]:
        if self.buffer_dtype is None:
            return []
        assert self.module is not None
        buffer = self.file.fresh(self.module, "buffer", "float_buffer")
        return [
            f"for {buffer} in {root}.buffers():",
            f"    if {buffer}.is_floating_point():",
            f"        {buffer}.data = {buffer}.to({code(self.buffer_dtype)})",
        ]


def policy_text(fields: dict[str, cst.BaseExpression], file: File, code: Code, casts: bool = True) -> str:
    """``MixedPrecisionPolicy(...)`` for the fields of a MixedPrecision."""
    arguments = [f"{name}={code(fields[name])}" for name in ("param_dtype", "reduce_dtype") if name in fields]
    if "param_dtype" in fields and "reduce_dtype" not in fields:
        # FSDP1 reduces in param_dtype by default; FSDP2 does so up to torch 2.14 only.
        arguments.append(f"reduce_dtype={code(fields['param_dtype'])}")
    if not casts:
        arguments.append("cast_forward_inputs=False")
    return call_text(file.ref("torch.distributed.fsdp.MixedPrecisionPolicy"), arguments)
