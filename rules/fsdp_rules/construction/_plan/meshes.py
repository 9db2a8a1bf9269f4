"""The lines that make a mesh, and what each strategy that is chosen at run time becomes."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.construction._plan.plan import Device, ShardPlan
from fsdp_rules.construction._plan.policy_text import at_margin, display
from fsdp_rules.construction._plan.strategies import Strategies
from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.own_names import BY_NAME, own_name
from fsdp_rules.file.printing import call_text
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.strategy_names import HYBRID, ZERO2
from fsdp_rules.verdict.diagnosis import Replace

NAMES = 'mesh_dim_names=("replicate", "shard")'


def device_type(device: Device, file: File, code: Code) -> str:
    """The type of the mesh's device, as an expression."""
    if device.kind == "unknown" and device.value is not None:
        text = code(device.value)
        return f"{text}.type" if device.is_device else f"{file.ref('torch.device')}({text}).type"
    if device.kind in ("cuda", "cpu"):
        return f'"{device.kind}"'
    return f"{file.ref('torch.accelerator.current_accelerator')}().type"


class Meshes:
    """Writes the meshes of one plan."""

    def __init__(self, plan: ShardPlan, file: File) -> None:
        self.plan = plan
        self.file = file
        #: Whether FSDP2's default mesh, on the accelerator, may be another device's than the model's.
        self.names_device = plan.device.kind in ("cpu", "unknown")

    @property
    def needs_statements(self) -> bool:
        """Whether the mesh takes more than an expression."""
        return self.plan.mesh in ("hybrid", "no_shard", "groups", "replicated") or self.plan.strategy is not None

    @property
    def wanted(self) -> bool:
        """Whether a mesh is passed at all, one that comes with the strategy left out."""
        return not self.by_name and (self.plan.mesh is not None or (self.names_device and self.plan.strategy is None))

    @property
    def by_name(self) -> bool:
        """Whether a function of the file gives the mesh with the strategy."""
        return self.plan.strategy is not None and self.plan.strategy.name is not None

    def world(self) -> str:
        """The number of all ranks."""
        return f"{self.file.ref('torch.distributed.get_world_size')}()"

    def per_node(self, code: Code) -> str:
        """The number of a node's devices."""
        if self.plan.device.kind == "cuda":
            return f"{self.file.ref('torch.cuda.device_count')}()"
        kind = device_type(self.plan.device, self.file, code)
        return f"{self.file.ref('torch.get_device_module')}({kind}).device_count()"

    def made(self, shape: str, code: Code, *, named: bool = True) -> str:
        """A mesh of the ``shape`` over all ranks."""
        init = self.file.ref("torch.distributed.device_mesh.init_device_mesh")
        kind = device_type(self.plan.device, self.file, code)
        return call_text(init, [kind, shape, *([NAMES] if named else [])])

    def expression(self, code: Code) -> str | None:
        """The mesh as one expression, None for FSDP2's default."""
        plan = self.plan
        if plan.mesh == "given" and plan.mesh_value is not None:
            return plan.mesh_name or code(plan.mesh_value)
        if plan.mesh == "group" and plan.mesh_value is not None:
            return self._of_group(code(plan.mesh_value), code)
        if plan.mesh == "no_shard":
            return self.made(f"({self.world()}, 1)", code)
        if self.names_device and plan.strategy is None:
            return self.made(f"({self.world()},)", code, named=False)
        return None

    def lines(self, name: str, code: Code) -> list[str]:
        """Statements that give the mesh the ``name``."""
        plan = self.plan
        if plan.mesh == "hybrid":
            per_node = self._per_node
            shape = f"({self.world()} // {per_node}, {per_node})"
            return [f"{per_node} = {self.per_node(code)}", f"{name} = {self.made(shape, code)}"]
        if plan.mesh == "groups" and plan.mesh_value is not None:
            return self.of_groups(name, plan.groups, plan.mesh_value, code)
        if plan.mesh in ("group", "replicated") and plan.mesh_value is not None:
            return self._lines_of_group(name, code)
        return [f"{name} = {self.expression(code)}"]

    def _of_group(self, group: str, code: Code) -> str:
        from_group = self.file.ref("torch.distributed.device_mesh.DeviceMesh") + ".from_group"
        text = call_text(from_group, [group, device_type(self.plan.device, self.file, code)])
        if not self.plan.optional_group:
            return text
        default = self.made(f"({self.world()},)", code, named=False) if self.names_device else "None"
        return f"{text} if {group} is not None else {default}"

    def _lines_of_group(self, name: str, code: Code) -> list[str]:
        plan = self.plan
        assert plan.mesh_value is not None
        group, lines = code(plan.mesh_value), []
        replicates = plan.mesh == "replicated" or self._may_replicate
        if not is_repeatable(plan.mesh_value) and (plan.optional_group or replicates):
            group = self.file.fresh(plan.module, "group", "process_group", "shard_group")
            lines.append(f"{group} = {code(plan.mesh_value)}")
        if not replicates:
            return [*lines, f"{name} = {self._of_group(group, code)}"]
        distributed = self.file.ref("torch.distributed.new_group").rpartition(".")[0]
        alone = f"{distributed}.new_group([{distributed}.get_rank()], use_local_synchronization=True)"
        ranks = f"{self.file.ref('torch.tensor')}({distributed}.get_process_group_ranks({group})).view(-1, 1)"
        from_group = self.file.ref("torch.distributed.device_mesh.DeviceMesh") + ".from_group"
        kind = device_type(plan.device, self.file, code)
        wide = f"{name} = " + call_text(from_group, [f"[{group}, {alone}]", kind, f"mesh={ranks}", NAMES])
        if plan.mesh == "replicated":
            return [*lines, wide]
        indented = wide.replace("\n", "\n    ")
        return [
            *lines,
            f'if {self.strategy_name(code)}.pop("replicate", False):',
            f"    {indented}",
            "else:",
            f"    {name} = {self._of_group(group, code)}",
        ]

    def of_groups(
        self,
        name: str,
        groups: tuple[cst.BaseExpression, cst.BaseExpression] | None,
        value: cst.BaseExpression,
        code: Code,
    ) -> list[str]:
        """Statements that give the mesh of ``value``, a pair of ``groups`` to shard and to replicate over, its name."""
        plan = self.plan
        unpacked: list[str] = []
        names = (
            self.file.fresh(plan.module, "shard_group", "intra_node_group"),
            self.file.fresh(plan.module, "replicate_group", "inter_node_group"),
        )
        if groups is None:
            shard, replicate = names
            unpacked.append(f"{shard}, {replicate} = {code(value)}")
        else:
            named = [code(group) if is_repeatable(group) else name for group, name in zip(groups, names, strict=True)]
            unpacked += [
                f"{name} = {code(group)}" for group, name in zip(groups, names, strict=True) if not is_repeatable(group)
            ]
            shard, replicate = named
        rows = self.file.fresh(plan.module, "rows", "shard_ranks")
        distributed = self.file.ref("torch.distributed.all_gather_object").rpartition(".")[0]
        from_group = self.file.ref("torch.distributed.device_mesh.DeviceMesh") + ".from_group"
        kind = device_type(plan.device, self.file, code)
        gathered = f"{distributed}.get_process_group_ranks({shard})"
        mesh = f"mesh={self.file.ref('torch.tensor')}({rows})"
        return [
            *unpacked,
            f"{rows} = [None] * {distributed}.get_world_size({replicate})",
            f"{distributed}.all_gather_object({rows}, {gathered}, group={replicate})",
            f"{name} = " + call_text(from_group, [f"[{replicate}, {shard}]", kind, mesh, NAMES]),
        ]

    # Strategies

    @property
    def _pops(self) -> bool:
        return self.plan.mesh == "group" and self._may_replicate

    @property
    def _may_replicate(self) -> bool:
        strategy = self.plan.strategy
        return strategy is not None and "NO_SHARD" in strategy.names

    def strategy_name(self, code: Code) -> str:
        """The variable that holds the chosen arguments."""
        strategy = self.plan.strategy
        assert strategy is not None
        if isinstance(strategy.value, cst.Name) and not self._pops and strategy.name is None:
            return code(strategy.value)
        return self.file.fresh(self.plan.module, "sharding", "sharding_kwargs", "shard_arguments")

    def strategy_lines(self, code: Code) -> list[str]:
        """The statements that choose the arguments."""
        strategy = self.plan.strategy
        if strategy is None:
            return []
        if strategy.name is not None:
            given = code(strategy.name) + (".name" if strategy.is_enum else "")
            kind = device_type(self.plan.device, self.file, code)
            given_mesh = [code(self.plan.mesh_value)] if self.plan.mesh_value is not None else []
            mapper = own_name(BY_NAME, self.file)
            return [f"{self.strategy_name(code)} = {call_text(mapper, [given, kind, *given_mesh])}"]
        name, text = self.strategy_name(code), at_margin(code(strategy.value))
        if self._pops and not isinstance(strategy.value, cst.Subscript | cst.IfExp):
            text = f"dict({text})"
        if self.plan.mesh is None and self.names_device and strategy.shares_mesh:
            mesh = self.file.fresh(self.plan.module, "mesh", "device_mesh", "shard_mesh")
            known = f"({text})" if isinstance(strategy.value, cst.IfExp) else text
            name = self.file.fresh(self.plan.module, "sharding", "sharding_kwargs", "shard_arguments")
            made = self.made(f"({self.world()},)", code, named=False)
            return [f"{mesh} = {made}", f'{name} = {{**{known}, "mesh": {mesh}}}']
        lines = [f"{name} = {text}"] if name != text else []
        if not strategy.eager or self.plan.mesh is not None:
            return lines
        if HYBRID.intersection(strategy.names) and not isinstance(strategy.value, cst.Name):
            lines.insert(0, f"{self._per_node} = {self.per_node(code)}")
        mesh = self.file.fresh(self.plan.module, "mesh", "device_mesh", "shard_mesh")
        made = self.made(f'{name}["mesh"]', code).replace("\n", "\n    ")
        passed = f'    {name} = {{**{name}, "mesh": {mesh}}}'
        lines += [f'if "mesh" in {name}:', f"    {mesh} = {made}", passed]
        if self.names_device:
            whole = self.made(f"({self.world()},)", code, named=False)
            lines[-1:] = ["else:", f"    {mesh} = {whole}", passed.lstrip()]
        return lines

    @property
    def _per_node(self) -> str:
        return self.file.fresh(self.plan.module, "per_node", "devices_per_node")

    def strategy_edits(self) -> list[Replace]:
        """What each strategy that may be chosen becomes where it is written."""
        strategy = self.plan.strategy
        if strategy is None:
            return []
        return [self.chosen(node, kind, strategy) for node, kind in strategy.kinds.items()]

    def chosen(self, node: cst.BaseExpression, kind: str, strategy: Strategies) -> Replace:
        """The edit that puts the arguments of ``fully_shard`` in the place of the strategy ``kind``."""

        def build(code: Code) -> str:
            entries: list[str] = []
            shape = self._shape(kind, code)
            if kind == "NO_SHARD" and self.plan.mesh == "group":
                entries.append('"replicate": True')
            elif self.plan.mesh is None and shape is not None:
                entries.append(f'"mesh": {shape if strategy.eager else self.made(shape, code)}')
            elif self.plan.mesh is None and self.names_device and not strategy.eager and not strategy.shares_mesh:
                entries.append(f'"mesh": {self.made(f"({self.world()},)", code, named=False)}')
            if kind in ZERO2:
                entries.append('"reshard_after_forward": False')
            return display(entries) if any("\n" in entry for entry in entries) else f"{{{', '.join(entries)}}}"

        return Replace(node, build)

    def _shape(self, kind: str, code: Code) -> str | None:
        if kind in HYBRID:
            strategy = self.plan.strategy
            known = strategy is not None and strategy.eager and not isinstance(strategy.value, cst.Name)
            per_node = self._per_node if known else self.per_node(code)
            return f"({self.world()} // {per_node}, {per_node})"
        return f"({self.world()}, 1)" if kind == "NO_SHARD" else None
