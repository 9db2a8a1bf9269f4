"""Rule for ``optimizer.state_dict()``, taken without FSDP1's help."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import given_to
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.model.flowing import known_as, value_of
from fsdp_rules.model.guards import is_under_ddp
from fsdp_rules.project.flow import Certainty
from fsdp_rules.state._optimizer_objects import is_an_optimizer
from fsdp_rules.state._writing.pickled import is_unpickled
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

#: Functions that call ``state_dict()`` of what their dictionary holds.
TAKES = frozenset(f"torch.distributed.checkpoint.{name}" for name in ("async_save", "load", "save"))


_ADVICE = (
    "use get_optimizer_state_dict(model, {optimizer}), which returns a state by name for any number of ranks. "
    "Convert old files once with fsdp-migrate checkpoint convert (FSDP403)."
)
_LOADING = (
    "convert the old files once with fsdp-migrate checkpoint convert (FSDP403), and load the result with "
    "set_optimizer_state_dict. If no run resumes from files of FSDP1, keep the line"
)


class RawOptimizerState(Rule):
    """optimizer.state_dict() saved directly.

    It contains this rank's part of the state: flat pieces under FSDP1, DTensors under FSDP2. FSDP1's files do not load
    into FSDP2: the load is accepted, and the next step fails. `get_optimizer_state_dict` returns a state keyed by name
    for any number of ranks. Nothing is rewritten, because the program may want this rank's part. If it also reads such
    a file, you have to decide what to do with the files that FSDP1 wrote.
    """

    id = "FSDP311"
    name = "raw-optimizer-state"
    what_to_test = RESUME
    visits = (cst.Call,)
    shim = True
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def main(net, rank):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save(optimizer.state_dict(), f"optimizer_{rank}.pt")
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def main(net, rank):
    model = fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save(optimizer.state_dict(), f"optimizer_{rank}.pt")
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for each state that FSDP1 does not transform afterwards."""
        if "fsdp1" not in file.project.tree_flags:
            return
        taken, loads = _taken_whole(node, file), _loads_a_part(node, file)
        if (taken is None and loads is None and not is_raw_state(node, file)) or not (
            file.project.touches(file.path) or any(map(canonical, file.aliases.values()))
        ):
            return
        if is_under_ddp(node, file) or _is_of_ddp(file):
            return
        if loads is not None:
            text, is_read = file.code(loads), value_of(node.args[0].value, file).loaded is Certainty.YES
            sure = is_read and is_an_optimizer(loads, file)
            yield Diagnosis(
                node,
                Level.MANUAL if sure else Level.REVIEW,
                f"{'' if sure else f'if {text} is an optimizer: '}{text} loads this rank's part of a state from a "
                f"file: "
                "FSDP1's are flat, and the next step fails",
                _LOADING,
            )
            return
        if taken is not None:
            text = file.code(taken)
            yield Diagnosis(
                taken,
                Level.REVIEW,
                f"this loads {text}.state_dict(), and FSDP1's files with it do not load into FSDP2",
                _ADVICE.format(optimizer=text),
            )
            return
        yield Diagnosis(
            node,
            Level.REVIEW,
            f"{file.code(node)} is this rank's part of the state, and FSDP1's parts do not load into FSDP2",
            _ADVICE.format(optimizer="optimizer"),
        )


def _loads_a_part(call: cst.Call, file: File) -> cst.BaseExpression | None:
    """What may be an optimizer over sharded parameters, and gets what a file holds, as no function of FSDP1 made it."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "load_state_dict" or not call.args:
        return None
    of = call.func.value
    return of if known_as("sharded_optimizer", of, file) and is_unpickled(call.args[0].value, file) else None


def _taken_whole(call: cst.Call, file: File) -> cst.BaseExpression | None:
    """The optimizer that a function of torch.distributed.checkpoint gets by itself: it calls its ``state_dict()``."""
    if file.resolved(call.func) not in TAKES or not call.args:
        return None
    state = file.objects.origin(call.args[0].value)
    values = [entry.value for entry in state.elements] if isinstance(state, cst.Dict) else []
    named = (one for one in values if isinstance(one, cst.Name | cst.Attribute))
    return next((one for one in named if is_an_optimizer(one, file)), None)


def _is_of_ddp(file: File) -> bool:
    """Whether the file is about DistributedDataParallel alone: it names it, nothing of FSDP, and is given no model."""
    return file.path in file.project.optimizers.ddp and not file.project.touches(file.path)


def is_raw_state(call: cst.Call, file: File) -> bool:
    """Whether ``call`` is an optimizer's own ``state_dict()``, which none of FSDP1's functions transforms."""
    return (
        not call.args
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "state_dict"
        and is_an_optimizer(call.func.value, file)
        and not _is_transformed(call, file)
    )


def _is_transformed(call: cst.Call, file: File) -> bool:
    """Whether the state goes into one of FSDP1's functions."""
    parent = file.parent(call)
    reads: list[cst.CSTNode] = [call]
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0].target, cst.Name):
        name = parent.targets[0].target
        reads += [use for use in file.uses(name.value) if file.scope(use) == file.scope(name)]
    for read in reads:
        taker = given_to(read, file)
        if taker is not None and (file.fsdp1(taker.func) or "").startswith(f"{FSDP}."):
            return True
    return False
