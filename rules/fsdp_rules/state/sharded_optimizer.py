"""Rule for ``load_sharded_optimizer_state_dict``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import bind, only_key
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.state._governing.calls import Action, calls_in
from fsdp_rules.state._governing.entering import governing_with
from fsdp_rules.state._governing.site import StateSite, state_site
from fsdp_rules.state._writing.dcp_imports import DCP, spell
from fsdp_rules.state._writing.verdict import problem_of
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, ReplaceStatement
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

#: The names of fsdp_compat's class, which takes and gives states in FSDP1's formats.
SHIM_CLASSES = frozenset({"fsdp_compat.FSDP", f"fsdp_compat.{FSDP}"})
FUNCTION = "load_sharded_optimizer_state_dict"
ADVICE = (
    f'state = {{"optimizer": get_optimizer_state_dict(model, optimizer)}}; {DCP}.load(state, storage_reader=...); '
    'set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optimizer"])'
)


class ShardedOptimizer(Rule):
    """load_sharded_optimizer_state_dict().

    FSDP1's function builds ShardedTensors from the files alone. `torch.distributed.checkpoint.load` fills a state that
    already has the right shape: the optimizer's own, from `get_optimizer_state_dict`. FSDP1's checkpoints load, because
    the names are the same. It reads only those entries of the parameter groups that the optimizer already has: a
    scheduler adds `initial_lr`, and a scheduler built after the load uses the checkpoint's learning rate as its initial
    one. With the class of `fsdp_compat`, which accepts ShardedTensors, the call is unchanged.
    """

    id = "FSDP308"
    name = "sharded-optimizer"
    what_to_test = RESUME
    spelled = ("load_sharded_optimizer_state_dict",)
    visits = (cst.Call,)
    before = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

def load(model, optimizer, reader):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = load_sharded_optimizer_state_dict(model.state_dict(), "optimizer", reader)
        flat = FSDP.optim_state_dict_to_load(model, optimizer, state["optimizer"])
    optimizer.load_state_dict(flat)
"""
    after = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

def load(model, optimizer, reader):
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, storage_reader=reader)
    set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optimizer"])
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        if file.resolved(node.func) not in (f"{DCP}.{FUNCTION}", f"{DCP}.optimizer.{FUNCTION}"):
            return
        if _is_on_shim(file):
            return
        if any(problem_of(block, file) is not None for block, _ in governing_with(node, file)):
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{FUNCTION} fills ShardedTensors, which FSDP2's optimizers do not have",
                ADVICE,
            )
            return
        build = _build(node, file)
        if build is None:
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{FUNCTION} needs the optimizer under FSDP2, and it is not certain which one",
                ADVICE,
            )
            return
        yield Diagnosis(
            node,
            Level.REVIEW,
            "the checkpoint is read into the optimizer's own state, without param group entries it lacks (initial_lr)",
            "build the scheduler before this load, or set initial_lr by hand as for a new run",
            edits=(ReplaceStatement(file.statement(node), build),),
        )


def _is_on_shim(file: File) -> bool:
    """Whether the file, or a tree that has neither FSDP1 nor FSDP2 beside it, imports fsdp_compat's class."""
    project = file.project
    alone = not project.tree_flags & {"fsdp1", "gated", "fsdp2"}
    named = project.names.names.values() if alone else (project.aliases(file.path),)
    return any(project.resolve(full) in SHIM_CLASSES for names in named for full in names.values())


def _build(call: cst.Call, file: File) -> Build | None:
    """The statements that take the place of the assignment of ``call``'s result, or None where they cannot be told."""
    arguments = bind(call, ("model_state_dict", "optimizer_key", "storage_reader", "planner"))
    place = _place(call, file)
    consumer = _consumer(call, file)
    if arguments is None or place is None or consumer is None:
        return None
    if "optimizer_key" not in arguments or "storage_reader" not in arguments:
        return None
    target, chosen = place
    key, reader, planner = arguments["optimizer_key"], arguments["storage_reader"], arguments.get("planner")
    if chosen is not None and file.code(chosen) != file.code(key):
        return None
    optim = consumer.state.optim or (consumer.load.target if consumer.load is not None else None)
    if optim is None:
        return None
    get = file.ref(Action.GET_OPTIM.full_name)
    read = spell("load", call, file)

    def build(code: Code) -> str:
        lines = [
            f"{target} = {{{code(key)}: {get}({code(consumer.model)}, {code(optim)})}}",
            f"{read}({target}, storage_reader={code(reader)}{f', planner={code(planner)}' if planner else ''})",
        ]
        if chosen is not None:
            lines.append(f"{target} = {target}[{code(key)}]")
        return "\n".join(lines)

    return build


def _place(call: cst.Call, file: File) -> tuple[str, cst.BaseExpression | None] | None:
    """The name that the result is assigned to, and the key that is taken out of it first."""
    value: cst.BaseExpression = call
    chosen: cst.BaseExpression | None = None
    parent = file.parent(call)
    if isinstance(parent, cst.Subscript) and (chosen := only_key(parent)) is not None:
        value, parent = parent, file.parent(parent)
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1 or parent.value is not value:
        return None
    target = parent.targets[0].target
    return (target.value, chosen) if isinstance(target, cst.Name) else None


def _consumer(call: cst.Call, file: File) -> StateSite | None:
    """The call of the same function that makes a state ready for the optimizer, where all of them mean the same one."""
    function = file.function(call)
    if function is None:
        return None
    found = [site for entry in calls_in(function.body) if (site := state_site(entry, file)) is not None]
    sites = [site for site in found if site.state.action is Action.SET_OPTIM and not site.state.problem]
    optims = [site.state.optim for site in sites]
    meant = {
        (file.code(site.model), file.code(optim) if optim is not None else "")
        for site, optim in zip(sites, optims, strict=True)
    }
    return sites[0] if len(meant) == 1 else None
