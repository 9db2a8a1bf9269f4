"""The ``FSDP(...)`` call itself: its arguments are gathered, planned one by one, and rendered in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import argument_rules
from fsdp_rules.construction._plan.arguments import gather
from fsdp_rules.construction._plan.beyond_dtensors import beyond
from fsdp_rules.construction._plan.bound_calls import Bound
from fsdp_rules.construction._plan.cures import cure
from fsdp_rules.construction._plan.each_unit import beyond_native
from fsdp_rules.construction._plan.early_optimizers import early_optimizers
from fsdp_rules.construction._plan.expert import kept_layout, plan_layout
from fsdp_rules.construction._plan.four_bit import builds_four_bit_weights
from fsdp_rules.construction._plan.length import MOST_LINES, too_long
from fsdp_rules.construction._plan.materializing import functions
from fsdp_rules.construction._plan.own_weights import plan_own_weights
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.construction._plan.render import render_native
from fsdp_rules.construction._plan.run_structure import Shown, is_shown, shown_by_run, written_by_run
from fsdp_rules.construction._plan.spread import plan_spread, spread_of
from fsdp_rules.construction._plan.unusable import line_of_first_wrap, unusable
from fsdp_rules.construction.cpu_offload import CPU_BACKEND
from fsdp_rules.construction.mixed_precision import BUFFERS_CAST, CHECK_BATCHNORM, CHECK_BUFFERS, NO_BATCHNORM
from fsdp_rules.construction.sharding_strategy import CHECK_ACCUMULATED, ONE_BACKWARD
from fsdp_rules.construction.shared_inputs import sharing_inputs
from fsdp_rules.construction.unseen_optimizers import UNSEEN, about_unseen_optimizers, may_have_unseen
from fsdp_rules.construction.unused_parameters import about_unused_parameters, unread_parts
from fsdp_rules.file.expressions import literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.fsdp1.api import parameters
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.backends import reduces_no_cpu_tensors
from fsdp_rules.model.kept_clearing import has_kept_clearing
from fsdp_rules.model.kept_frozen import has_kept_frozen
from fsdp_rules.model.unwrapped_models import has_batch_norm, is_loaded, may_be_on_meta
from fsdp_rules.project.configured import Contract
from fsdp_rules.project.flow import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace, Taken
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Role, Rule
from fsdp_rules.verdict.sentence import sentence

RUN_IN_ORDER = "assumes each forward runs all units in the order in which the model defines them (forward_prefetch)"
NOT_ON_META = "assumes this model is not on the meta device, where its first forward would fail"
KEPT = "FSDP1 may keep gradients that are cleared between a forward and its backward"
KEPT_FROZEN = "when a backward runs through a frozen model, FSDP1 keeps the gradients that the model has"
#: What a traced run shows of models in place of an assumption.
SHOWN: Shown = {
    NO_BATCHNORM: ("this model has no BatchNorm", lambda shown: not shown.batch_norm),
    BUFFERS_CAST: ("this model has no floating-point buffers", lambda shown: not shown.buffers),
    NOT_ON_META: ("this model is not on the meta device", lambda shown: not shown.on_meta),
    UNSEEN: ("no optimizer held its parameters before", lambda shown: not shown.early),
}
#: Arguments on which the meaning of others depends.
FIRST = ("process_group", "device_mesh")


class ConstructorCall(Rule):
    """FullyShardedDataParallel(...).

    `FSDP(model, ...)` becomes `fully_shard` on the units that FSDP1 would have wrapped, children before parents and the
    model itself last. FSDP2 shards in place, so the same object is used afterwards. If an argument is only known at run
    time (a strategy from a configuration, a policy from another file, a dictionary that is filled step by step),
    `fsdp_compat.shard` takes FSDP1's arguments unchanged and applies them to `fully_shard`. A wrap whose result is
    discarded is unchanged: FSDP1 trains at most the units of its policy. A wrap that is the only assignment of its name
    in a function raises, so it is unchanged too. Models with 4-bit bitsandbytes weights need FSDP1, because FSDP2's
    shards lose their quantization state. Optimizers of apex do not work on FSDP2's parameters.
    """

    id = "FSDP101"
    is_wrap = True
    role = Role.WRAP
    name = "constructor-call"
    shim = True
    moves_together = True
    spelled = ("fsdp", "FSDP", "FullyShardedDataParallel")
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model, use_orig_params=True)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    return fully_shard(model)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for the call and one for each of its arguments; of the shim's, what it cannot carry."""
        if file.fsdp1(node.func) != FSDP:
            return ()
        if builds_four_bit_weights(node, file):
            message = "this model has 4-bit weights, which neither fully_shard nor fsdp_compat can shard"
            return (Diagnosis(node, Level.MANUAL, message, "keep this model on FSDP1", claims=(node.func,)),)
        return self._call(node, file) if file.settings.to != "shim" else ()

    def applied(self, bound: Bound, file: File) -> list[Diagnosis] | str:
        """The verdicts on a call that wraps with arguments bound elsewhere, or why it is not native."""
        verdicts = list(self._call(bound.call, file, bound))
        own = [verdict for verdict in verdicts if verdict.node is bound.call and not verdict.rule]
        if any(edit.node is not bound.call.func for verdict in own for edit in verdict.edits):
            return [_owned(verdict, self) for verdict in verdicts]
        return own[-1].message.rpartition(": ")[2] if own else "an argument has no FSDP2 form"

    def _call(self, call: cst.Call, file: File, bound: Bound | None = None) -> Iterator[Diagnosis]:
        yield from written_by_run(call, file)
        gathered = gather(call, parameters(FSDP), file)
        if bound is not None:
            before = gather(bound.arguments, parameters(FSDP), file)
            gathered.arguments = {**before.arguments, **gathered.arguments}
            gathered.reasons += before.reasons
            gathered.assumptions += before.assumptions
            gathered.consumed += before.consumed
            gathered.consumed += [(bound.statement, bound.name)] if bound.statement is not None else []
        spread = spread_of(call, file)
        contract = spread.contract(file) if spread is not None else None
        if contract is not None:
            gathered.reasons.clear()
        if "module" not in gathered.arguments and not gathered.reasons:
            message = "FSDP is called without a model, which raises a TypeError"
            yield Diagnosis(call, Level.MANUAL, message, "pass the model", claims=(call.func,))
            return
        plan = ShardPlan(call=call, arguments=gathered.arguments, consumed=[*gathered.consumed])
        plan.helper.extend(gathered.reasons)
        plan.assumptions.extend(gathered.assumptions)
        module = gathered.arguments.get("module")
        if module is not None and (said := [*unusable(call, module, file)]):
            yield from said
            return
        first = None if module is None else line_of_first_wrap(module, call, file)
        if first is not None:
            plan.helper.append(f"line {first} wraps this model already, and fully_shard accepts a module only once")
        if spread is not None and contract is not None:
            plan_spread(call, spread, contract, plan, file)
            plan.assumptions += _assumed(contract, file)
            if "mp_policy" in contract.keys and has_batch_norm(call, file) is Certainty.YES:
                plan.helper.append("the model may have BatchNorm, which FSDP1 keeps in full precision")
            elif "mp_policy" in contract.keys and has_batch_norm(call, file) is Certainty.MAYBE:
                plan.assumptions.append(NO_BATCHNORM)
        if may_be_on_meta(call, file):
            plan.on_meta = True
            if contract is not None:
                plan.helper.append("the model may be on the meta device, and its arguments come from another function")
            if "torchdistx" in file.text:
                plan.helper.append("torchdistX defers the initialisation of this model")
        given = len(plan.assumptions)
        early = [entry.name for entry in early_optimizers(call, file) if not entry.moves]
        plan.helper.extend(f"{name} is built before sharding and needs the new parameters" for name in early)
        verdicts: list[Diagnosis] = []
        passed: list[Diagnosis] = []
        for name, value in sorted(gathered.arguments.items(), key=lambda entry: entry[0] not in FIRST):
            rule = argument_rules().get(name)
            if rule is None:
                yield Diagnosis(
                    call,
                    Level.MANUAL,
                    f"FSDP1 in torch 2.13 has no constructor argument {name!r}",
                    "check which class is called here",
                    claims=(call.func,),
                )
                return
            assumed = len(plan.assumptions)
            for verdict in rule.plan(value, plan, file):
                verdicts.append(_owned(verdict, rule))
                about_helper = verdict.message.startswith("fsdp_compat.")
                passed.append(verdicts[-1] if about_helper else _passed(verdicts[-1], name, plan.assumptions[assumed:]))
        if "meta" in file.project.flags and not plan.on_meta and not is_loaded(call, file):
            plan.assumptions.insert(given, NOT_ON_META)
        blocked = [verdict for verdict in verdicts if verdict.level is Level.MANUAL]
        if blocked:
            yield from (_claiming(verdict, call.func) for verdict in blocked)
            return
        for message, advice in beyond(file.module, file):
            yield Diagnosis(call, Level.REVIEW, message, advice)
        yield from plan_own_weights(call, plan, file)
        if plan.ignored is not None and (plan.units is not None or plan.on_meta):
            plan.helper.append("parameters are ignored, and the policy counts them or the model is on meta")
        plan.helper += beyond_native(plan, file)
        if file.settings.prefers_helpers:
            plan.helper.append("'--helpers always' was given")
        plan.helper += unread_parts(call, module, file) if module is not None else []
        plan.helper += sharing_inputs(call, file)
        plan.helper += [KEPT] * has_kept_clearing(call, file) + [KEPT_FROZEN] * has_kept_frozen(call, file)
        plan.edits += functions(plan, file)
        layout = [_owned(verdict, argument_rules()["auto_wrap_policy"]) for verdict in plan_layout(call, plan, file)]
        native = render_native(plan, file) if not plan.helper else None
        if native is not None and too_long(plan, native, file):
            native = None
            plan.helper.append(f"fully_shard would need more than {MOST_LINES} new lines here")
        guard: list[Diagnosis] = []
        # Without use_orig_params an optimizer from before trained nothing under FSDP1, either.
        flag = gathered.arguments.get("use_orig_params", cst.Name("False"))
        kept = spread is not None or bool(gathered.reasons) or literal_bool(file.value(flag)) is not False
        unseen = native is not None and kept and may_have_unseen(call, plan.module, file)
        plan.guarded = unseen and not is_shown(call, UNSEEN, SHOWN, file)
        if plan.guarded:
            marking = render_native(plan, file)
            native = marking or native
            # What was not guarded may be part of an expression, where no statement can stand around it.
            guard.append(about_unseen_optimizers(call, plan.module, file, marks=marking is not None))
        if native is not None:
            yield from shown_by_run(call, [*plan.assumptions, *([UNSEEN] if unseen else [])], SHOWN, file)
            plan.assumptions = [one for one in plan.assumptions if not is_shown(call, one, SHOWN, file)]
            level = Level.REVIEW if plan.assumptions else Level.SAFE
            ordered = [RUN_IN_ORDER] if plan.prefetches and plan.selector is not None else []
            level = Level.REVIEW if ordered else level
            message = sentence("sharded in place by fully_shard", *plan.assumptions, *ordered)
            checks = {
                NO_BATCHNORM: CHECK_BATCHNORM,
                ONE_BACKWARD: CHECK_ACCUMULATED,
                BUFFERS_CAST: CHECK_BUFFERS,
            }
            advice = next((check for assumed, check in checks.items() if assumed in plan.assumptions), "")
            edits, consumed = (*native, *plan.edits), tuple(plan.consumed)
            yield from guard
            has_mesh = plan.mesh == "given"
            taken = tuple(Taken(node, slot, plan.device.kind, has_mesh) for node, slot in plan.taken)
            yield Diagnosis(call, level, message, advice, edits, (call.func,), consumed, takes=taken)
            yield about_unused_parameters(call, plan.module, file)
            yield from (*verdicts, *layout)
            return
        reasons = plan.helper or ["several statements are needed, but only an expression is possible here"]
        if not file.settings.may_help:
            yield Diagnosis(
                call,
                Level.MANUAL,
                f"needs fsdp_compat.shard, but '--helpers never' forbids it: {', '.join(reasons)}",
                f"allow helpers, or {cure(reasons)}",
                claims=(call.func,),
            )
            return
        spelled = file.ref("fsdp_compat.shard")
        yield Diagnosis(
            call,
            Level.REVIEW,
            f"fsdp_compat.shard applies FSDP1's arguments at run time: {', '.join(reasons)}",
            f"check once what fsdp_compat.plan(...) prints for your model. To do without the helper, {cure(reasons)}",
            edits=(Replace(call.func, lambda code: spelled), *plan.helper_edits),
            claims=(call.func,),
        )
        yield from (*passed, *kept_layout(call, layout))


@once
def is_left(call: cst.Call, file: File) -> bool:
    """Whether ``call``, which wraps, is left to a human, so that nothing may be built on it."""
    said = ConstructorCall().visit(call, file)
    return any(one.level is Level.MANUAL and one.node is call for one in said)


def applied_all(calls: list[Bound] | str, file: File) -> list[Diagnosis] | str:
    """The verdicts on all ``calls``, each edit of what they share once, or why one of them is not native."""
    if isinstance(calls, str):
        return calls
    found: list[Diagnosis] = []
    edited: set[cst.CSTNode] = set()
    for bound in calls:
        said = ConstructorCall().applied(bound, file)
        if isinstance(said, str):
            return said
        for verdict in said:
            edits = [edit for edit in verdict.edits if not (isinstance(edit, Replace) and edit.node in edited)]
            edited.update(edit.node for edit in edits if isinstance(edit, Replace))
            found.append(replace(verdict, edits=tuple(edits)))
    return found


def _assumed(contract: Contract, file: File) -> Iterator[str]:
    """What is assumed of a call that is given the arguments in a dictionary."""
    if contract.buffers_like:
        yield BUFFERS_CAST
    if "NO_SHARD" in contract.strategies:
        yield ONE_BACKWARD
    if "offload_policy" in contract.keys and not reduces_no_cpu_tensors(file):
        yield CPU_BACKEND


def _owned(verdict: Diagnosis, rule: Rule) -> Diagnosis:
    return replace(verdict, rule=verdict.rule or rule.id)


def _passed(verdict: Diagnosis, name: str, assumptions: list[str]) -> Diagnosis:
    """The verdict about an argument that ``fsdp_compat.shard`` reads at run time: nothing was written for it here."""
    assumed = [text for text in assumptions if text in (CPU_BACKEND, ONE_BACKWARD)]
    message = sentence(f"{name} is passed to fsdp_compat.shard", *assumed)
    level = verdict.level if verdict.level is Level.INFO else Level.REVIEW if assumed else Level.SAFE
    return replace(verdict, level=level, message=message, advice="", edits=())


def _claiming(verdict: Diagnosis, node: cst.CSTNode) -> Diagnosis:
    return replace(verdict, claims=(*verdict.claims, node), edits=())
