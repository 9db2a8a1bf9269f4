"""Rule for parameters that are changed after a forward, while FSDP1 still has the old ones gathered."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.loop._parameter_writes import whole_of, writes
from fsdp_rules.loop.gathered import changes_gathered
from fsdp_rules.model.parameter_reads import changes_in_place, parameter_reads
from fsdp_rules.model.passes import end_of
from fsdp_rules.model.root_parameters import runs_without_graph, stay_gathered
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: What reads whole parameters, and gives under FSDP1 what is gathered where something is.
READS = frozenset({"get_model_state_dict", "get_state_dict", "state_dict", "summon_full_params"})
NATIVE = "FSDP1 computes with the old values up to its next backward; FSDP2 with these"
SHIM = "FSDP1's states have the old values up to its next backward; fsdp_compat's have these"
UNSURE = "if parameters belong to the root itself: "
MOVE = "change the parameters before the forward, or after a backward, where both see them at once, and compare"
#: Of a target network or a teacher, which never runs a backward.
NEVER = (
    "if no backward of it ever runs, FSDP1 ignored every change of the root's own parameters after its first forward: "
    "keep the line to get what was meant, and expect other losses. Otherwise change them before the forward, or after "
    "a backward, and compare"
)


class StaleParameters(Rule):
    """Parameters that are changed between a forward without a backward and what comes next.

    After a forward FSDP1 keeps its root gathered until a backward (under SHARD_GRAD_OP all units). What is changed by
    `for p in model.parameters(): p.copy_(...)` is the shard. The next forward computes with what is gathered, and
    `state_dict()` and `summon_full_params` give that, until a backward frees it. A teacher that no backward
    frees has the values of its first forward in all that it computes and saves. FSDP2 is resharded before the
    change and computes with the new values at once. fsdp_compat computes as FSDP1 does, and its states have what was
    changed.
    """

    id = "FSDP239"
    name = "stale-parameters"
    shim = True
    markers = (".parameters()",)
    what_to_test = "Change the parameters after an evaluation, and compare the losses that follow with the old code's."
    visits = (cst.Module,)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def evaluate(net, shadow, batches):
    model = FSDP(net)
    with torch.no_grad():
        before = model(batches[0])
        for parameter, value in zip(model.parameters(), shadow):
            parameter.copy_(value)
        return before, model(batches[0])
"""
    after = """
import torch
from torch.distributed.fsdp import FSDPModule, fully_shard

def evaluate(net, shadow, batches):
    model = fully_shard(net)
    with torch.no_grad():
        before = model(batches[0])
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                unit.reshard()
        # TODO(fsdp-migrate FSDP239): FSDP1 computes with the old values up to its next backward; FSDP2 with these
        for parameter, value in zip(model.parameters(), shadow):
            parameter.copy_(value)
        return before, model(batches[0])
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Every change of parameters where a forward may have been the last pass."""
        if "fsdp1" not in file.project.flags:
            return
        shim = file.settings.to == "shim"
        for place, part, clears in parameter_reads(file):
            model = whole_of(part, clears, file)
            changes = writes(place, model, file) if isinstance(place, cst.For) else changes_in_place(place, file)
            if clears or not changes or not changes_gathered(place, model, file):
                continue
            sure = stay_gathered(model, file)
            if sure is not Certainty.NO:
                level = Level.REVIEW if shim and not _is_read_after(place, file) else Level.MANUAL
                unsure = "" if sure is Certainty.YES else UNSURE
                advice = NEVER if runs_without_graph(model, file) else MOVE
                yield Diagnosis(place, level, unsure + (SHIM if shim else NATIVE), advice)


def _is_read_after(place: cst.CSTNode, file: File) -> bool:
    """Whether a state is read after ``place``, here or in a caller, before a backward."""
    scope = file.scope(place)
    return file.project.entered.before_call(file.path, scope, READS, end_of(place, file))
