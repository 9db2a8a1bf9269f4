"""From a finished plan to the statements that a person would have written."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.construction._plan.around import (
    all_tensors,
    buffer_lines,
    device_lines,
    has_buffer_dtype,
    ignored_lines,
    marked,
    prefetch_lines,
    reduces_unused,
    sync_lines,
    unused_lines,
)
from fsdp_rules.construction._plan.call_place import Place, above_of, place_of
from fsdp_rules.construction._plan.each_unit import loop_of_each, loop_of_units
from fsdp_rules.construction._plan.expert import lines_of_layout
from fsdp_rules.construction._plan.materializing import Arguments, unit_lines
from fsdp_rules.construction._plan.meshes import Meshes
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.construction._plan.policy_text import at_margin, display, policy_text, read_policies
from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.own_names import BY_FIELDS, own_name
from fsdp_rules.file.printing import call_text
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Build, Edit, InsertBefore, Replace, ReplaceStatement


def render_native(plan: ShardPlan, file: File) -> list[Edit] | None:
    """The edits that turn the planned call into ``fully_shard`` calls, or None where no statement can be put."""
    renderer = _Renderer(plan, file)
    place = place_of(plan.call, file)
    edits: list[Edit] = [*renderer.meshes.strategy_edits()]
    adds = reduces_unused(plan.call, file)
    if place is None and not renderer.needs_statements and not (adds and above_of(plan.call, file)):
        return [Replace(plan.call, renderer.expression), *edits]
    if place is None:
        statement = above_of(plan.call, file)
        if statement is None:
            return None
        above, in_place = renderer.around(statement)
        return [above, in_place, *edits]
    if place.form in ("assign", "annotated") or renderer.needs_statements or renderer.meshes.wanted or adds:
        return [ReplaceStatement(place.statement, renderer.statements(place)), *edits]
    return [Replace(plan.call, renderer.expression), *edits]


class _Renderer:
    def __init__(self, plan: ShardPlan, file: File) -> None:
        self.plan = plan
        self.file = file
        self.module = plan.module
        self.meshes = Meshes(plan, file)
        self.fully_shard = file.ref("torch.distributed.fsdp.fully_shard")
        self.needs_statements = bool(
            plan.has_units
            or plan.sync is not None
            or plan.on_meta
            or plan.spread is not None
            or plan.ignored is not None
            or has_buffer_dtype(plan)
            or (plan.precision is not None and (plan.precision.value or plan.precision.chosen) is not None)
            or plan.device.set_current
            or plan.guarded
            or plan.taken_out
            or self.meshes.needs_statements
        )

    def expression(self, code: Code) -> str:
        """The whole call as one expression."""
        arguments = self._shared(self.meshes.expression(code), code)
        if self.plan.precision is not None:
            arguments["mp_policy"] = self._policy(code, root=True)
        return call_text(self.fully_shard, [code(self.module), *_keywords(arguments)])

    def root(self, code: Code) -> str:
        """What names the model below the statements."""
        if is_repeatable(self.module):
            return code(self.module)
        return self.file.fresh(self.module, "model", "wrapped_model", "sharded_model")

    def statements(self, place: Place) -> Build:
        """The statements for ``place``."""

        def build(code: Code) -> str:
            return "\n".join(self._lines(place, code))

        return build

    def around(self, statement: cst.CSTNode) -> tuple[InsertBefore, Replace]:
        """What goes above ``statement``, of which the call is a part, and what goes in the place of the call."""
        place = Place(statement, "part")

        wraps = [one for one in self.file.inside(statement, cst.Call) if self.file.fsdp1(one.func) == FSDP]

        def split(code: Code) -> tuple[list[str], str]:
            lines, call, behind, root = self._parts(place, code)
            # The next wrap of the statement may give the names in the call other values before it is made.
            if call is None or behind or (len(wraps) > 1 and any(" = " in line.split("(")[0] for line in lines)):
                return [*lines, *([call] if call is not None else []), *behind], root
            return lines, call

        def above(code: Code) -> str:
            return "\n".join(split(code)[0])

        def in_place(code: Code) -> str:
            return split(code)[1]

        return InsertBefore(statement, above), Replace(self.plan.call, in_place)

    def _lines(self, place: Place, code: Code) -> list[str]:
        lines, call, buffers, root = self._parts(place, code)
        if call is None:
            lines, call, buffers = [*lines, *buffers], root, []
        if place.form == "return":
            return [*lines, call, *buffers, f"return {root}"] if buffers else [*lines, f"return {call}"]
        if place.annotation is not None:
            return [*lines, f"{place.target}: {code(place.annotation)} = {call}", *buffers]
        if place.form == "assign" and place.target != root:
            return [*lines, f"{place.target} = {call}", *buffers]
        return [*lines, *([call] if call != root else []), *buffers]

    def _parts(self, place: Place, code: Code) -> tuple[list[str], str | None, list[str], str]:
        """The statements above the root's call, that call, the statements behind it, and the name of the root.

        The call is None where a loop makes it too.
        """
        text = code(self.module)
        lines: list[str] = []
        if place.form in ("assign", "annotated") and place.target != text:
            if is_repeatable(self.module):
                root = text
            else:
                root = place.target
                lines.append(f"{root} = {text}")
        else:
            root = self.root(code)
            lines += [f"{root} = {text}"] if root != text else []
        lines += self.plan.taken_out
        lines += device_lines(self.plan, self.file, code)
        precision = self.plan.precision
        if precision is not None and precision.chosen is not None:
            lines.append(f"{precision.variable} = {at_margin(code(precision.chosen))}")
        lines += self.meshes.strategy_lines(code)
        mesh = self._mesh(lines, code)
        ignored, self._ignored, self._never_units = ignored_lines(self.plan, self.file, code)
        lines += ignored
        if self.plan.sync is not None and not self.plan.on_meta:
            lines += sync_lines(self.plan, all_tensors(root, self.file), mesh, self.file, code, self._ignored)
        lines += marked(self.module, root, True, self.file) if self.plan.guarded else []
        call = self._sharding(lines, root, mesh, code)
        buffers = buffer_lines(self.plan, root, self._buffers_policy, self.file, code, self._never_units)
        buffers += [*unused_lines(self.plan.call, root, self.file), *prefetch_lines(self.plan, root, self.file)]
        buffers += marked(self.module, root, False, self.file) if self.plan.guarded else []
        return lines, call, buffers, root

    def _mesh(self, lines: list[str], code: Code) -> str | None:
        """The mesh as the calls name it; statements that make it go to ``lines``."""
        if not self.meshes.wanted:
            return f'{self.meshes.strategy_name(code)}["mesh"]' if self.meshes.by_name else None
        text = self.meshes.expression(code)
        synced = self.plan.sync is not None and self.plan.mesh is not None
        inline = text is not None and "(" not in text and " if " not in text
        if inline or not (self.meshes.needs_statements or self.plan.has_units or synced):
            return text
        if self.plan.mesh == "no_shard" and not self.plan.has_units and not synced:
            return text
        name = self.file.fresh(self.module, "mesh", "device_mesh", "shard_mesh")
        lines += self.meshes.lines(name, code)
        return name

    def _sharding(self, lines: list[str], root: str, mesh: str | None, code: Code) -> str | None:
        """Add the calls of ``fully_shard`` to ``lines``; the root's call, None where a loop makes it too."""
        plan = self.plan
        shared = self._shared(mesh, code)
        own: dict[str, str] = {}
        its: dict[str, str] = {}
        spread = self.meshes.strategy_name(code) if plan.strategy is not None else plan.spread
        if plan.precision is not None:
            self._policies(lines, shared, own, its, code)
        given = [*_keywords(shared), *([f"**{spread}"] if spread else [])]
        if plan.has_units and (len(shared) > 1 or (spread and shared)):
            name = self.file.fresh(self.module, "fsdp_kwargs", "shared_fsdp_kwargs", "fully_shard_kwargs")
            entries = [*(f'"{key}": {text}' for key, text in shared.items()), *([f"**{spread}"] if spread else [])]
            lines.append(f"{name} = {display(entries)}")
            given = [f"**{name}"]
        if plan.on_meta:
            made, call = unit_lines(plan, root, mesh, Arguments(own, its, given), self.file, code)
            lines += made
            return call
        if plan.has_units:
            arguments = [*_keywords(its), *given]
            if plan.layout is not None:
                lines += lines_of_layout(plan, root, arguments, self.file, code)
            elif plan.each is not None:
                lines += loop_of_each(plan, root, arguments, shared, self._never_units, self.file, code)
            else:
                lines += loop_of_units(plan, root, arguments, self._never_units, self.file, code)
        return call_text(self.fully_shard, [root, *_keywords(own), *given])

    def _policies(
        self, lines: list[str], shared: dict[str, str], own: dict[str, str], its: dict[str, str], code: Code
    ) -> None:
        """Give the root and its units their policies: one for all where they cast alike."""
        precision = self.plan.precision
        assert precision is not None
        if precision.value is not None:
            policy = self.file.fresh(self.module, "mp_policy", "mixed_precision_policy", "shard_mp_policy")
            inner = self.file.fresh(self.module, "unit_mp_policy", "unit_policy", "inner_mp_policy")
            if precision.plain:
                held = self._held_precision(precision.value, code)
                units = inner if self.plan.has_units or not self.plan.root else None
                lines += read_policies(precision.value, policy, units, held, self.file, code)
                own["mp_policy"], its["mp_policy"] = policy if self.plan.root else inner, inner
                self._buffers_policy = held
                return
            dtype = self.file.fresh(self.module, "buffer_dtype", "dtype_of_buffers")
            lines.append(f"{policy}, {inner}, {dtype} = {own_name(BY_FIELDS, self.file)}({code(precision.value)})")
            own["mp_policy"], its["mp_policy"] = policy if self.plan.root else inner, inner
            self._buffers_policy = dtype
            return
        if not self.plan.has_units:
            shared["mp_policy"] = self._policy(code, root=True)
            return
        policy = precision.variable or ""
        if not policy:
            policy = self.file.fresh(self.module, "mp_policy", "mixed_precision_policy", "shard_mp_policy")
            lines.append(f"{policy} = {policy_text(precision.fields, self.file, code)}")
        self._buffers_policy = policy
        casts = {root: self._casts(root=root) for root in (True, False)}
        if all(casts.values()):
            shared["mp_policy"] = policy
            return
        without = self.file.fresh(self.module, "unit_mp_policy", "unit_policy", "inner_mp_policy")
        replaced = self.file.ref("dataclasses.replace")
        lines.append(f"{without} = {replaced}({policy}, cast_forward_inputs=False)")
        if not any(casts.values()):
            shared["mp_policy"] = without
        else:
            own["mp_policy"], its["mp_policy"] = policy, without

    def _held_precision(self, value: cst.BaseExpression, code: Code) -> str:
        """The name of a MixedPrecision that comes from elsewhere."""
        names = ("mixed_precision", "precision", "given_precision")
        return code(value) if is_repeatable(value) else self.file.fresh(self.module, *names)

    _buffers_policy: str | None = None
    _ignored: str | None = None
    _never_units: str | None = None

    def _shared(self, mesh: str | None, code: Code) -> dict[str, str]:
        """The arguments that the root and its units have in common, the policy left out."""
        plan = self.plan
        arguments: dict[str, str] = {}
        if mesh is not None and not self.meshes.by_name:
            arguments["mesh"] = mesh
        if plan.reshard_after_forward is not None:
            arguments["reshard_after_forward"] = str(plan.reshard_after_forward)
        if self._ignored is not None:
            arguments["ignored_params"] = self._ignored
        policy = self.file.ref("torch.distributed.fsdp.CPUOffloadPolicy") + "()"
        if plan.offload_value is not None:
            arguments["offload_policy"] = code(plan.offload_value)
        elif plan.offload_if is not None:
            nothing = self.file.ref("torch.distributed.fsdp.OffloadPolicy") + "()"
            arguments["offload_policy"] = f"{policy} if {code(plan.offload_if)} else {nothing}"
        elif plan.offload:
            arguments["offload_policy"] = policy
        return arguments

    def _casts(self, *, root: bool) -> bool:
        precision = self.plan.precision
        assert precision is not None
        own = bool(precision.flag("cast_forward_inputs", False))
        return own or (root and self.plan.root and bool(precision.flag("cast_root_forward_inputs", True)))

    def _policy(self, code: Code, *, root: bool) -> str:
        precision = self.plan.precision
        assert precision is not None
        casts = self._casts(root=root)
        self._buffers_policy = precision.variable
        if precision.variable is None:
            return policy_text(precision.fields, self.file, code, casts)
        if casts:
            return precision.variable
        return f"{self.file.ref('dataclasses.replace')}({precision.variable}, cast_forward_inputs=False)"


def _keywords(arguments: dict[str, str]) -> list[str]:
    return [f"{name}={text}" for name, text in arguments.items()]
