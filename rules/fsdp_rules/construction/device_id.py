"""Rule for the argument ``device_id``."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import Device, ShardPlan
from fsdp_rules.file.expressions import bind, brief, is_none, is_repeatable, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.model.wrap_given import WrapGiven
from fsdp_rules.project.value_facts import NONE
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

CURRENT = "fully_shard moves the model to the current device"
FALSE = cst.Name("False")
RANK = re.compile(r"(local_?rank|\blocal\b|\brank\b|\bgpu\b|gpu_id|device_count)", re.IGNORECASE)


class DeviceId(ArgumentRule):
    """device_id.

    FSDP2 moves parameters to the device of its mesh, on CUDA the current device, so `torch.cuda.current_device()` is
    removed. Another index becomes `torch.cuda.set_device(...)` if nothing in the project sets the device. A device that
    may be the CPU becomes the device type of the mesh, since FSDP2's default mesh is on the accelerator if there is
    one.
    """

    id = "FSDP106"
    name = "device-id"
    moves_together = True
    what_to_test = "Run it on every type of device that the project supports, with more than one process per machine."
    arguments = ("device_id",)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model, device_id=torch.cuda.current_device())
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def build(model):
    return fully_shard(model)
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Find out what kind of device the value means."""
        found = file.value(value)
        kind, is_device = self._kind(value, found, file)
        if kind == "optional":
            sets = "set_device" not in file.project.flags
            if sets and literal_bool(plan.arguments.get("sync_module_states", FALSE)) is not False:
                plan.helper.append(f"device_id={brief(file.code(value))} is only known at run time")
            chosen = plan.named(value, ("device", "shard_device"), file) if sets else None
            plan.device = Device("unset", chosen, is_device, sets)
        if kind in ("optional", "unset"):
            if not is_none(found):
                yield Diagnosis(value, Level.SAFE, CURRENT)
            return
        # FSDP1 takes a device without an index for the current one.
        current = kind == "current"
        kind = "cuda" if current else kind
        device = value
        if kind == "unknown":
            given = WrapGiven(((file.path, file.span(plan.call).line),), file).texts("device_id")
            # An attribute that is None at first is often set where it is first read.
            if NONE in given and isinstance(value, cst.Name):
                plan.helper.append(f"device_id={brief(file.code(value))} may be None")
            elif is_repeatable(value) or self._is_given(found, file):
                device = plan.named(value, ("device", "shard_device"), file)
            else:
                plan.helper.append(f"device_id={brief(file.code(value))} is only known at run time")
        set_current = not current and kind != "cpu" and "set_device" not in file.project.flags
        plan.device = Device(kind, device, is_device, set_current)
        message = {
            "cuda": CURRENT,
            "cpu": "passed as the device type of the mesh",
            "unknown": "passed as the device type of the mesh",
        }[kind]
        yield Diagnosis(value, Level.SAFE, message)

    def _kind(self, value: cst.BaseExpression, found: cst.BaseExpression, file: File) -> tuple[str, bool]:
        if is_none(found):
            return "unset", False
        if file.calls(found, "torch.cuda.current_device"):
            return "current", False
        if isinstance(found, cst.BooleanOperation) and isinstance(found.operator, cst.Or):
            # What is None, or the index 0, gives the other one.
            first, second = (self._kind(arm, file.value(arm), file)[0] for arm in (found.left, found.right))
            return ("cuda" if first in ("cuda", "optional") and second in ("cuda", "current") else "unknown"), False
        if isinstance(found, cst.Integer | cst.BinaryOperation):
            return "cuda", False
        if file.calls(found, "torch.device"):
            return self._literal(found, file), True
        if isinstance(found, cst.IfExp):
            if file.calls(found.test, "torch.cuda.is_available") and self._is_current(found, file):
                return "current", False
            seen = {self._kind(arm, file.value(arm), file) for arm in (found.body, found.orelse)}
            kinds = {kind for kind, _ in seen}
            if "unset" in kinds and kinds <= {"unset", "current", "cuda"}:
                # FSDP1's device is the current one where it is given none, as that of FSDP2's default mesh is.
                return ("optional" if "cuda" in kinds else "unset"), all(
                    is_device for kind, is_device in seen if kind == "cuda"
                )
            return seen.pop() if len(seen) == 1 else ("unknown", all(is_device for _, is_device in seen))
        arms = file.values(value)
        if arms and all(file.calls(arm, "torch.device") for arm in arms):
            kinds = {self._literal(arm, file) for arm in arms}
            return (kinds.pop() if len(kinds) == 1 else "unknown"), True
        annotation = self._annotation(value, file)
        if annotation == "int":
            return "cuda", False
        if annotation in ("Optional[int]", "typing.Optional[int]", "int | None", "None | int"):
            return "optional", False
        if annotation == "torch.device":
            return "unknown", True
        if annotation is None and RANK.search(file.code(found)):
            return "cuda", False
        return "unknown", False

    def _is_given(self, found: cst.BaseExpression, file: File) -> bool:
        """Whether ``found`` surely is a device or an index, and never None."""
        if isinstance(found, cst.IfExp):
            return all(self._is_given(file.value(arm), file) for arm in (found.body, found.orelse))
        kind, is_device = self._kind(found, found, file)
        return is_device or kind not in ("unknown", "unset", "optional")

    def _is_current(self, choice: cst.IfExp, file: File) -> bool:
        """Whether ``choice`` is the device of FSDP2's default mesh: the current one with CUDA, else the CPU."""
        body, other = (file.value(arm) for arm in (choice.body, choice.orelse))
        is_cpu = is_none(other) or self._kind(choice.orelse, other, file)[0] == "cpu"
        return is_cpu and self._kind(choice.body, body, file)[0] == "current"

    def _literal(self, call: cst.BaseExpression, file: File) -> str:
        arguments = bind(call, ("type", "index")) if isinstance(call, cst.Call) else None
        first = next(iter(arguments.values()), None) if arguments else None
        return self._spelled(first, arguments is not None and "index" in arguments, file)

    def _spelled(self, first: cst.BaseExpression | None, has_index: bool, file: File) -> str:
        if isinstance(first, cst.IfExp):
            kinds = {self._spelled(arm, has_index, file) for arm in (first.body, first.orelse)}
            return kinds.pop() if len(kinds) == 1 else "unknown"
        if isinstance(first, cst.SimpleString):
            kind, index, _ = str(first.evaluated_value).partition(":")
            if kind == "cuda":
                return "cuda" if index or has_index else "current"
            return kind if kind == "cpu" else "unknown"
        if isinstance(first, cst.FormattedString) and file.code(first)[2:].startswith("cuda:"):
            return "cuda"
        if isinstance(first, cst.Integer) or (first is not None and RANK.search(file.code(first))):
            return "cuda"
        return "unknown"

    def _annotation(self, value: cst.BaseExpression, file: File) -> str | None:
        function = file.function(value)
        if function is None or not isinstance(value, cst.Name):
            return None
        for parameter in (*function.params.params, *function.params.kwonly_params):
            if parameter.name.value == value.value and parameter.annotation is not None:
                return file.resolved(parameter.annotation.annotation) or file.code(parameter.annotation.annotation)
        return None
