"""Rule for targets of a checkpoint load that ask for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import bind
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import known_as
from fsdp_rules.state._writing.dcp_imports import DCP
from fsdp_rules.state.raw_optimizer import is_raw_state
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

LOADS = tuple(
    f"{package}.{name}"
    for package in (DCP, f"{DCP}.state_dict_loader", "torch.distributed._shard.checkpoint")
    for name in ("load", "load_state_dict", "async_load")
)


class LoadTarget(Rule):
    """Empty target of torch.distributed.checkpoint.load.

    `load` reads only the keys of its target. The `state_dict()` of a fresh optimizer has no state yet, so a target made
    from it has no keys for the state: the load succeeds, learning rates are read, and Adam silently starts from zero.
    An empty dictionary reads nothing at all. Both happen under FSDP1 as well. `get_optimizer_state_dict(model,
    optimizer)` returns a target with all keys, and `set_optimizer_state_dict` loads it into the optimizer.
    `FSDP.optim_state_dict` of a fresh optimizer is empty too, under FSDP1 and `fsdp_compat`. The rewritten code has the
    keys, so a resumed run continues with the saved optimizer state, which FSDP1 had silently reset.
    """

    id = "FSDP313"
    name = "load-target"
    what_to_test = RESUME
    visits = (cst.Call,)
    shim = True
    before = """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def resume(net, path):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=path)
    optimizer.load_state_dict(state["optimizer"])
"""
    after = """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

def resume(net, path):
    model = fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters())
    # TODO(fsdp-migrate FSDP313): optimizer.state_dict() of a fresh optimizer is empty: its state is not loaded
    state = {"optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=path)
    optimizer.load_state_dict(state["optimizer"])
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Look at what each load is given to fill."""
        if not file.project.may_trap(file.settings.traps):
            return
        sure = known_as("filled", node.func, file)
        if sure or known_as("perhaps_filled", node.func, file):
            yield _gathered(node, sure, file)
        if file.resolved(node.func) not in LOADS:
            return
        target = (bind(node, ("state_dict", "storage_reader")) or _by_keyword(node)).get("state_dict")
        if target is None:
            return
        value = file.objects.origin(target)
        if isinstance(value, cst.Dict) and not value.elements and not _is_filled(target, node, file):
            yield Diagnosis(
                node,
                Level.MANUAL,
                "the target of this load is empty, so nothing is loaded",
                "fill it with get_model_state_dict(model) and get_optimizer_state_dict(model, optimizer) first",
            )
        for part in _parts(value):
            state = file.value(part)
            if isinstance(state, cst.Call) and is_raw_state(state, file):
                yield Diagnosis(
                    state,
                    Level.MANUAL,
                    f"{file.code(state)} of a fresh optimizer is empty: its state is not loaded",
                    "load into get_optimizer_state_dict(model, optimizer), then set_optimizer_state_dict(model, "
                    "optimizer, optim_state_dict=...)",
                )


def _gathered(load: cst.Call, sure: bool, file: File) -> Diagnosis:
    """FSDP1's own functions return no state of a fresh optimizer; FSDP2's fill it in."""
    if file.settings.to == "shim":
        return Diagnosis(
            load,
            Level.REVIEW,
            "the state of a fresh optimizer is empty, as under FSDP1, so this load skips it",
            "load load_sharded_optimizer_state_dict(model.state_dict(), key, reader) of "
            "torch.distributed.checkpoint.optimizer",
        )
    unsure = "" if sure else "if the optimizer has made no step: "
    return Diagnosis(
        load,
        Level.MANUAL if sure else Level.REVIEW,
        f"{unsure}FSDP1's state of a fresh optimizer is empty, so this load reset the optimizer: FSDP2 restores it",
        "to resume with the saved state, keep the line. To reset the optimizer as FSDP1 did, do not load its state",
    )


def _by_keyword(call: cst.Call) -> dict[str, cst.BaseExpression]:
    named = {argument.keyword.value: argument.value for argument in call.args if argument.keyword is not None}
    first = call.args[0] if call.args else None
    return {"state_dict": first.value, **named} if first is not None and first.keyword is None else named


def _parts(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The target itself, or what the literal dictionary that it is holds, inner dictionaries included."""
    if not isinstance(value, cst.Dict):
        yield value
        return
    for element in value.elements:
        if isinstance(element, cst.DictElement):
            yield from _parts(element.value)


def _is_filled(target: cst.BaseExpression, call: cst.Call, file: File) -> bool:
    """Whether anything but ``call`` gets hold of the dictionary before it."""
    if not isinstance(target, cst.Name):
        return False
    scope, line = file.scope(target), file.span(call).line
    return any(
        use is not target and file.scope(use) == scope and file.span(use).line <= line
        for use in file.uses(target.value)
    )
