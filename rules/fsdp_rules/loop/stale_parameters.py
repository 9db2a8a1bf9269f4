"""Rule for parameters that are changed after a forward, while FSDP1 still has the old ones gathered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._parameter_writes import whole_of, writes
from fsdp_rules.loop.gathered import changes_gathered
from fsdp_rules.model.flowing import known_as, value_of
from fsdp_rules.model.parameter_reads import changes_in_place, parameter_reads
from fsdp_rules.model.passes import Event, Pass, end_of, forwards_before, last_passes, passes_in
from fsdp_rules.model.root_parameters import runs_without_graph, stay_gathered
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: What reads whole parameters, and gives under FSDP1 what is gathered where something is.
READS = frozenset({"get_model_state_dict", "get_state_dict", "state_dict", "summon_full_params"})
NATIVE = "FSDP1 uses the old values until its next backward; FSDP2 uses the new ones"
UNSURE = "if parameters belong to the root itself: "
KEEP = (
    "To keep the numbers, shard by fsdp_compat.shard, remove the reshard here, and save inside "
    "fsdp_compat.summon_full_params"
)
MOVE = (
    "change the parameters before the forward, or after a backward, where both see the change at once, and compare. "
    f"{KEEP}"
)
#: Of a target network or a teacher, which never runs a backward.
NEVER = (
    "if it never runs a backward, FSDP1 ignored every change to the root's own parameters after its first forward. "
    f"Keep the line to get the intended behaviour, and expect different losses. {KEEP}. Otherwise change them before "
    "the forward, or after a backward, and compare"
)


class StaleParameters(Rule):
    """Parameters changed after a forward without a backward.

    After a forward, FSDP1 keeps its root gathered until a backward (under SHARD_GRAD_OP all units). `for p in
    model.parameters(): p.copy_(...)` changes only the shard. Until a backward frees the gathered copy, the next forward
    computes with it, and `state_dict()` and `summon_full_params` return it. A teacher that never runs a backward
    computes and saves the values of its first forward. The rewrite reshards the FSDP2 model before the change, so it
    computes with the new values at once. fsdp_compat computes, saves and summons as FSDP1 does. An object that stores
    the parameters, such as an average, changes them in the same way, and so does an optimizer that steps after an
    evaluation that followed the backward.
    """

    id = "FSDP239"
    name = "stale-parameters"
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
        # TODO(fsdp-migrate FSDP239): FSDP1 uses the old values until its next backward; FSDP2 uses the new ones
        for parameter, value in zip(model.parameters(), shadow):
            parameter.copy_(value)
        return before, model(batches[0])
"""

    def visit(self, node: cst.Module, file: File) -> Iterable[Diagnosis]:
        """Every change of parameters where a forward may have been the last pass."""
        if "fsdp1" not in file.project.flags:
            return
        reads = list(parameter_reads(file))
        yield from _held_elsewhere(reads, file)
        for place, part, clears in reads:
            model = whole_of(part, clears, file)
            changes = writes(place, model, file) if isinstance(place, cst.For) else changes_in_place(place, file)
            changes = changes or (isinstance(place, cst.Call) and known_as("writes", place.func, file))
            if clears or not changes or not changes_gathered(place, model, file):
                continue
            sure = stay_gathered(model, file)
            if sure is not Certainty.NO:
                unsure = "" if sure is Certainty.YES else UNSURE
                advice = NEVER if runs_without_graph(model, file) else MOVE
                yield Diagnosis(place, Level.MANUAL, unsure + NATIVE, advice)


def _is_read_after(place: cst.CSTNode, file: File) -> bool:
    """Whether a state is read after ``place``, here or in a caller, before a backward; in the block that it enters."""
    block = _entered(place, file)
    if block is not None:
        return any(last_name(call.func) in READS for call in file.inside(block.body, cst.Call))
    scope = file.scope(place)
    return file.project.entered.before_call(file.path, scope, READS, end_of(place, file))


def _entered(call: cst.CSTNode, file: File) -> cst.With | None:
    """The block whose context ``call`` makes, at the end of which it takes its changes back."""
    block = next((one for one in file.ancestors(call) if isinstance(one, cst.With)), None)
    is_item = block is not None and any(call in file.inside(item, cst.Call) for item in block.items)
    return block if is_item else None


def _held_elsewhere(reads: Sequence[tuple[cst.CSTNode, cst.BaseExpression, bool]], file: File) -> Iterator[Diagnosis]:
    """What changes parameters that an object has kept, or that are given by another name than the model's.

    A gathered root computes with the old values under both, as long as it is not resharded for something else.
    """
    spoken = {place for place, _, _ in reads}
    for call in file.nodes(cst.Call):
        steps = _steps(call, file)
        if call in spoken or not (steps or known_as("writes", call.func, file)) or is_summoned(call, file):
            continue
        # What a caller ran before is for its own call, and what is given the model for its own body.
        given = any(sharded(one.value, file).certainty is not Certainty.NO for one in call.args)
        last = last_passes(call, file, made_here=True)
        if given or Pass.FORWARD not in last or (Pass.BACKWARD in last and steps) or _ran_with(call, file):
            continue
        if _is_read_after(call, file) or _is_resharded(call, reads, file):
            forwards = forwards_before(call, file)
            sure = stay_gathered(forwards[-1].func, file) if forwards else Certainty.MAYBE
            if sure is not Certainty.NO:
                unsure = "" if sure is Certainty.YES else UNSURE
                yield Diagnosis(call, Level.MANUAL, unsure + NATIVE, MOVE)


def _steps(call: cst.Call, file: File) -> bool:
    """Whether ``call`` is the step of an optimizer, which follows a backward unless an evaluation runs between."""
    func = call.func
    of = func.value if isinstance(func, cst.Attribute) and func.attr.value == "step" and not call.args else None
    return of is not None and value_of(of, file).optimizer is Certainty.YES


def _ran_with(call: cst.Call, file: File) -> bool:
    """Whether the forward that gathered parameters computed with what ``call`` changes them to, as its block did."""
    first: Event | None = None
    start = (0, 0)
    for event in passes_in(file.function(call) or file.module, file):
        if end_of(event.call, file) > end_of(call, file):
            break
        if Pass.BACKWARD in event.passes:
            first, start = None, end_of(event.call, file)
        elif first is None and Pass.FORWARD in event.passes:
            first = event
    if first is None:
        return False
    around = set(file.ancestors(first.call))
    return any(
        known_as("writes", other.func, file)
        and start < end_of(other, file) <= end_of(first.call, file)
        and (file.code(other) == file.code(call) or _entered(other, file) in around)
        for other in file.nodes(cst.Call)
    )


def _is_resharded(call: cst.Call, reads: Sequence[tuple[cst.CSTNode, cst.BaseExpression, bool]], file: File) -> bool:
    """Whether the model is resharded for what reads its parameters between the backwards around ``call``."""
    owner, block = file.function(call), _entered(call, file)
    for place, part, clears in reads:
        if block is not None and block not in file.ancestors(place):
            continue
        if not clears and file.function(place) is owner and changes_gathered(place, whole_of(part, clears, file), file):
            first, last = sorted((end_of(place, file), end_of(call, file)))
            between = passes_in(owner or file.module, file)
            if not any(Pass.BACKWARD in one.passes and first < end_of(one.call, file) < last for one in between):
                return True
    return False
