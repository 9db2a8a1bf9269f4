"""Rule for torch.autocast around a sharded model, whose casts of weights FSDP1 never kept."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import call_of, given_to, is_repeatable, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import call_with
from fsdp_rules.file.reads import is_read_whole
from fsdp_rules.file.tree import Code
from fsdp_rules.model.guards import is_under_another_wrapper, is_under_ddp
from fsdp_rules.model.passes import Pass, end_of, passes_in
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrappers import asked_sharded, other_wrapper
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.sentence import sentence
from fsdp_rules.verdict.what_to_test import LOSSES

#: The functions, each with the position of its argument cache_enabled.
POSITIONS = {
    "torch.autocast": 3,
    "torch.amp.autocast": 3,
    "torch.amp.autocast_mode.autocast": 3,
    "torch.cuda.amp.autocast": 2,
    "torch.cuda.amp.autocast_mode.autocast": 2,
    "torch.cpu.amp.autocast": 2,
    "torch.cpu.amp.autocast_mode.autocast": 2,
}
ENABLED = "enabled"
CACHE = "cache_enabled"
FULL = ("torch.float32", "torch.float")
OFF = f"{CACHE}=False"
CACHED = f"{OFF} makes torch.autocast cast FSDP2's weights for each use, as it did with FSDP1's"
KEEPS_CACHE = "a model in another wrapper keeps its cache"
ASSUMED = "assumes a sharded model runs in this region"
HANDED_ON = "torch.autocast caches casts of FSDP2's weights until the end of a region (FSDP1: for one use)"
GIVE = f"pass {OFF} where it is called around a sharded model"


class AutocastCache(Rule):
    """torch.autocast around a sharded model.

    `torch.autocast` caches the low-precision copy of a leaf parameter until its outermost region ends. FSDP1 computes
    with views of a flat parameter, which autocast casts for each use. FSDP2's gathered parameters are leaves: the next
    forward in a region computes with casts from before an optimizer step, and if a weight is used twice before a
    backward, its gradients are summed in low precision. `cache_enabled=False` casts for each use again, and frees each
    copy as FSDP1 does. `fsdp_compat.shard`, and code migrated with `--to shim`, turn the cache off while a sharded
    model runs. If the model may be in another wrapper, whose weights are cached as before, the region tests it:
    `cache_enabled=not isinstance(model, FSDPModule)`. If `autocast` is assigned to a name that is only called, it
    becomes a partial. If it is passed to another function, the finding is `manual`.
    """

    id = "FSDP242"
    name = "autocast-cache"
    markers = ("autocast",)
    what_to_test = LOSSES
    visits = (cst.Call, cst.Name, cst.Attribute)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, batches):
    model = FSDP(net)
    for chosen, rejected in batches:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (model(rejected) - model(chosen)).mean()
        loss.backward()
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def train(net, batches):
    model = fully_shard(net)
    for chosen, rejected in batches:
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            loss = (model(rejected) - model(chosen)).mean()
        loss.backward()
"""

    def visit(self, node: cst.Call | cst.Name | cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """A region, what makes one later, or the class as a value."""
        if "fsdp1" not in file.project.flags or not file.project.touches(file.path):
            return
        if isinstance(node, cst.Call):
            position = _position(node, file)
            if position is not None:
                yield from _region(node, position, file)
        elif file.resolved(node) in POSITIONS and _is_value(node, file):
            calls = _calls_of(node, file)
            if calls is None:
                yield Diagnosis(node, Level.MANUAL, HANDED_ON, GIVE)
            elif any(_position(call, file) is None for call in calls):
                partial = file.ref("functools.partial")
                edits = (Replace(node, lambda code: f"{partial}({code(node)}, {OFF})"),)
                yield Diagnosis(node, Level.REVIEW, sentence(CACHED, ASSUMED), edits=edits)


def _position(call: cst.Call, file: File) -> int | None:
    """Where ``call``, of autocast or of a partial of it, takes whether the cache is on; None for other calls."""
    if file.resolved(call.func) == "functools.partial" and call.args:
        position = POSITIONS.get(file.resolved(call.args[0].value) or "")
        return None if position is None else position + 1
    return POSITIONS.get(file.resolved(call.func) or "")


def _region(call: cst.Call, position: int, file: File) -> Iterable[Diagnosis]:
    named = {one.keyword.value: one for one in call.args if one.keyword is not None}
    placed = [one for one in call.args if one.keyword is None and not one.star]
    given = named.get(CACHE, placed[position] if len(placed) > position else None)
    is_off = literal_bool(named[ENABLED].value) is False if ENABLED in named else False
    # Only casts of float32 weights to another dtype are kept.
    is_off = is_off or any(file.resolved(file.value(one.value)) in FULL for one in call.args)
    if is_off or (given is not None and literal_bool(given.value) is False):
        return
    if is_under_ddp(call, file) or is_under_another_wrapper(call, file):
        return
    runs = _run_in(call, file)
    models = (one for run in runs for one in (run.func, *(argument.value for argument in run.args)))
    either = next((one for one in models if _may_be_either(one, file)), None)
    if either is not None and given is None:
        test = asked_sharded(either, file)
        yield Diagnosis(
            call,
            Level.SAFE,
            sentence(CACHED, KEEPS_CACHE),
            edits=(Replace(call, lambda code: _with_cache(call, None, f"not {test(code)}", code, file)),),
        )
        return
    yield Diagnosis(
        call,
        Level.SAFE if runs else Level.REVIEW,
        CACHED if runs else sentence(CACHED, ASSUMED),
        edits=(Replace(call, lambda code: _with_cache(call, given, "False", code, file)),),
    )


def _with_cache(call: cst.Call, given: cst.Arg | None, value: str, code: Code, file: File) -> str:
    """``call`` with the cache on where ``value`` is true; ``given`` is its argument for that."""
    if given is None or given.keyword is not None:
        return call_with(call, {CACHE: value}, {}, code, file)
    off = given.with_changes(value=cst.parse_expression(value))
    return code(call.with_changes(args=[off if one is given else one for one in call.args]))


def _may_be_either(model: cst.BaseExpression, file: File) -> bool:
    """Whether ``model`` is sharded in one run and in another wrapper in another, and can be asked."""
    is_model = is_repeatable(model) and sharded(model, file).certainty is not Certainty.NO
    return is_model and other_wrapper(model, file) is not Certainty.NO


def _run_in(call: cst.Call, file: File) -> list[cst.Call]:
    """The calls in the region that ``call`` opens which are seen to run a sharded model."""
    region = next((one for one in file.ancestors(call) if isinstance(one, cst.With | cst.FunctionDef)), None)
    if not isinstance(region, cst.With) or not any(
        call in (one.item, *file.inside(one, cst.Call)) for one in region.items
    ):
        return []
    first, last = end_of(call, file), end_of(region, file)
    events = passes_in(file.function(call) or file.module, file)
    return [one.call for one in events if Pass.FORWARD in one.passes and first < end_of(one.call, file) <= last]


def _calls_of(node: cst.BaseExpression, file: File) -> list[cst.Call] | None:
    """The calls of the local name that gets ``node``, or one of two values; None where it is read otherwise."""
    value = file.parent(node)
    assign = file.parent(value) if isinstance(value, cst.IfExp) else value
    if not isinstance(assign, cst.Assign) or not file.scope(assign):
        return None
    names = [one.target.value for one in assign.targets if isinstance(one.target, cst.Name)]
    uses = [use for name in names for use in file.uses(name)]
    calls = [call for use in uses if (call := call_of(use, file)) is not None]
    return calls if len(names) == len(assign.targets) and len(calls) == len(uses) else None


def _is_value(node: cst.BaseExpression, file: File) -> bool:
    """Whether the class ``node`` is handed on, so that something else may call it."""
    around = given_to(node, file)
    if call_of(node, file) is not None:
        return False
    if around is not None and (_position(around, file) is not None or file.code(around.func) == "isinstance"):
        return False
    return is_read_whole(node, file.layout) and not isinstance(file.parent(node), cst.Annotation | cst.ComparisonTarget)
