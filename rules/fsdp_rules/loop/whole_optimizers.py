"""Rule for optimizers whose update of an element depends on the whole parameter."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import last_name, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.loop._aware import is_aware
from fsdp_rules.loop._reductions import OF_MANY, REDUCES
from fsdp_rules.loop._update_numbers import is_only_kept
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.parameters import sharded_parameters
from fsdp_rules.model.sharded import sharded_source
from fsdp_rules.model.wrap_given import IGNORED, IGNORED_PARAMS, wrap_given
from fsdp_rules.model.wrapping import model_of_parameters
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: Classes of well-known libraries that use norms, rows and columns, or matrix products, of a parameter.
WHOLE = frozenset(
    {
        *("APOLLOAdamW", "AdaMuon", "Adafactor", "AdamWScale", "CAME", "DistributedShampoo", "FusedLAMB"),
        *("FusedNovoGrad", "GaLoreAdafactor", "GaLoreAdamW", "Kron", "LAMB", "LARS", "LBFGS", "Lamb", "Lars", "Muon"),
        *("MuonWithAuxAdam", "NovoGrad", "SM3", "SOAP", "SPlus", "Scion", "Shampoo", "SingleDeviceMuon"),
        "SingleDeviceMuonWithAuxAdam",
    }
)
#: Numbers that the update of an element may depend on.
NUMBERS = REDUCES - {"item", "max", "min"} | OF_MANY
#: Optimizers whose kernels get addresses of plain tensors; bitsandbytes' have states in blocks of what they get.
BY_ADDRESS = ("apex.optimizers.", "bitsandbytes.optim.")
BLOCKS = "{name} works on plain tensors (FSDP1: flat shards), and its kernels do not support DTensors"
#: torch's own optimizers that raise in their first step on DTensors (run with torch 2.13), by the argument that makes
#: them do so; none where all of them do.
NO_DTENSORS = {"Adafactor": None, "Adagrad": "fused", "Rprop": None, "SGD": "fused"}
RAISES = "torch.optim.{name} raises in its first step: DTensors lack operations that it uses"
NOT_FUSED = "remove fused=True, and compare the losses"
#: Arguments of torch's optimizers that step many tensors at once, all DTensors or none.
AT_ONCE = frozenset({"foreach", "fused"})
MIXED = "{name}({switch}=True) raises in its first step if a group has ignored (plain) and sharded parameters"
APART = "put the trained parameters that FSDP ignores into a separate group, so that no step mixes the two"
#: torch's own, which raises on FSDP1's flat shards.
MUON = "torch.optim.Muon"
MATRICES = "{name} raises under FSDP1 (flat shards), steps whole matrices under FSDP2, and raises on empty shards"
ROWS = "use matrices with at least as many rows as there are ranks, and compare the losses with a run of one process"
ON_SHARDS = "use another optimizer, or a subclass whose step works on p.to_local() and p.grad.to_local()"
TAKES_DTENSORS = "use an optimizer for DTensors, such as torchao.optim.AdamW8bit, and compare the losses"
SEEN = "{name} uses whole parameters (FSDP1: flat shards), so its steps differ"
KEPT = "{name} reports values of whole parameters (FSDP1: flat shards), which its steps do not use"
COMPARED = "do not compare these values with FSDP1's runs. p.to_local() returns this rank's part"
UNEVEN = f"{ON_SHARDS}. Without changes, LBFGS raises an error if the rows of a parameter do not divide evenly"
ADVICE = (
    "the new steps equal those of training without sharding. For FSDP1's steps, compute with to_local() everywhere "
    "in the "
    "optimizer's step. Compare the losses, and expect to tune the learning rate again"
)


class WholeOptimizers(Rule):
    """Optimizers that use whole parameters (LAMB, Adafactor, LBFGS).

    FSDP1 gives an optimizer flat, one-dimensional shards, so the optimizer computes norms, rows and columns of a rank's
    own shard. FSDP2's parameters are DTensors with their full shape: norms are global, and matrices have rows and
    columns. The steps differ, with the shim too. The optimizers of bitsandbytes and apex use kernels that do not
    support DTensors. `torch.optim.Rprop` and `torch.optim.Adafactor`, and `SGD` and `Adagrad` with `fused=True`, use
    operations that DTensors lack. `torch.optim.Muon`, which FSDP1 refuses, works on matrices with at least as many rows
    as there are ranks. With `foreach=True` or `fused=True`, a group raises if it trains ignored parameters (plain
    tensors) together with sharded ones. FSDP222 reports a custom optimizer that reduces such values over ranks by hand.
    """

    id = "FSDP228"
    name = "whole-parameter-optimizers"
    markers = (("Optimizer)", "param_groups"),)
    open_world = True
    what_to_test = "Compare the losses of a few hundred steps with those of the old code."
    visits = (cst.Call, cst.ClassDef)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch_optimizer import Lamb

def build(model):
    model = FSDP(model, use_orig_params=True)
    return model, Lamb(model.parameters(), lr=1e-3)
"""
    after = """
from torch.distributed.fsdp import fully_shard
from torch_optimizer import Lamb

def build(model):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP228): Lamb uses whole parameters (FSDP1: flat shards), so its steps differ
    return model, Lamb(model.parameters(), lr=1e-3)
"""

    def visit(self, node: cst.Call | cst.ClassDef, file: File) -> Iterable[Diagnosis]:
        """Calls of known classes for a sharded model, and classes of the program that take such numbers."""
        if "fsdp1" not in file.project.flags:
            return
        if isinstance(node, cst.Call):
            name = _class_of(node, file)
            if (file.resolved(node.func) or "").startswith(BY_ADDRESS):
                yield from _of_blocks(node, file)
            elif _raises(node, file):
                yield from _of_plain_tensors(node, name, file)
            elif switch := _steps_at_once(node, file):
                yield from _of_both(node, name, switch, file)
            elif name in WHOLE and node.args:
                held = _holds(node.args[0].value, file)
                if held is not Certainty.NO and name not in file.project.owners.classes:
                    is_unknown = held is Certainty.MAYBE and model_of_parameters(node.args[0].value, file) is None
                    own = MUON if file.resolved(node.func) == MUON else name
                    yield _diagnosis(node, own, held, Level.REVIEW if is_unknown else Level.MANUAL)
        elif any(last_name(base.value).endswith("Optimizer") for base in node.bases):
            taken = _numbers(node, file)
            held = max([file.project.entered.is_given_model(node.name.value), *(_of_model(one, file) for one in taken)])
            numbers = taken if held is not Certainty.NO else []
            used = [one for one in numbers if not is_only_kept(one, node, file)]
            level = Level.MANUAL if held is Certainty.YES else Level.REVIEW
            yield from (_diagnosis(one, node.name.value, held, level) for one in _by_statement(used, file))
            for number in () if used else _by_statement(numbers, file):
                message = KEPT.format(name=node.name.value)
                message = message if held is Certainty.YES else f"if its model is sharded: {message}"
                yield Diagnosis(number, Level.REVIEW, message, COMPARED)


def _by_statement(calls: list[cst.Call], file: File) -> list[cst.Call]:
    """The first of ``calls`` in each statement."""
    return list({file.statement(one): one for one in reversed(calls)}.values())[::-1]


def _raises(call: cst.Call, file: File) -> bool:
    """Whether ``call`` makes one of torch's optimizers that cannot step DTensors."""
    module, _, name = (file.resolved(call.func) or "").rpartition(".")
    if name not in NO_DTENSORS or not f"{module}.".startswith("torch.optim."):
        return False
    switch = NO_DTENSORS[name]
    given = [one.value for one in call.args if one.keyword is not None and one.keyword.value == switch]
    return switch is None or any(literal_bool(file.value(value)) is not False for value in given)


def _of_plain_tensors(call: cst.Call, name: str, file: File) -> Iterable[Diagnosis]:
    held = sharded_parameters(call.args[0].value, file) if call.args else Certainty.NO
    if held is not Certainty.NO:
        message = RAISES.format(name=name)
        message = message if held is Certainty.YES else f"if its model is sharded: {message}"
        advice = ON_SHARDS if NO_DTENSORS[name] is None else NOT_FUSED
        yield Diagnosis(call, Level.MANUAL, message, advice)


def _steps_at_once(call: cst.Call, file: File) -> str:
    """The argument by which ``call`` makes an optimizer of torch's that steps many tensors at once, "" for others."""
    if not (file.resolved(call.func) or "").startswith("torch.optim.") or not call.args:
        return ""
    given = ((one.keyword.value, one.value) for one in call.args if one.keyword is not None)
    return next((name for name, value in given if name in AT_ONCE and literal_bool(file.value(value))), "")


def _of_both(call: cst.Call, name: str, switch: str, file: File) -> Iterable[Diagnosis]:
    """The verdict about an optimizer of a natively sharded model, some of whose parameters are ignored."""
    parameters = call.args[0].value
    model = model_of_parameters(parameters, file)
    if (
        file.settings.to == "shim"
        or file.settings.torch < IGNORED_PARAMS
        or sharded_parameters(parameters, file) is Certainty.NO
        or ("ignored" not in file.project.flags if model is None else not _may_ignore(model, file))
    ):
        return
    message = MIXED.format(name=name, switch=switch)
    is_assumed = model is None or "freezes" in file.project.flags
    assumed = f"assumes ignored parameters are frozen or in other groups: {message}"
    yield Diagnosis(call, *((Level.REVIEW, assumed) if is_assumed else (Level.MANUAL, message)), APART)


def _may_ignore(model: cst.BaseExpression, file: File) -> bool:
    return wrap_given(model, file).gives("ignored", *IGNORED) is not Certainty.NO


def _of_blocks(call: cst.Call, file: File) -> Iterable[Diagnosis]:
    held = sharded_parameters(call.args[0].value, file) if call.args else Certainty.NO
    if held is not Certainty.NO:
        message = BLOCKS.format(name=last_name(call.func))
        message = message if held is Certainty.YES else f"if its model is sharded: {message}"
        yield Diagnosis(call, Level.MANUAL, message, TAKES_DTENSORS)


def _diagnosis(node: cst.CSTNode, name: str, held: Certainty, level: Level) -> Diagnosis:
    text = (MATRICES if name == MUON else SEEN).format(name=name)
    message = text if held is Certainty.YES else f"if its model is sharded: {text}"
    return Diagnosis(node, level, message, {"LBFGS": UNEVEN, MUON: ROWS}.get(name, ADVICE))


def _class_of(call: cst.Call, file: File) -> str:
    """What ``call`` calls, by the name that it has where it is defined."""
    return (file.resolved(call.func) or "").rpartition(".")[2] or last_name(call.func)


def _holds(value: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``value`` has parameters of a sharded model; a name that nothing is known of may."""
    model = model_of_parameters(value, file)
    if model is not None:
        return sharded_source(model, file)
    unknown = Certainty.MAYBE if isinstance(value, cst.Name | cst.Attribute) else Certainty.NO
    return max(unknown, sharded_parameters(value, file))


def _of_model(number: cst.Call, file: File) -> Certainty:
    """How sure it is that a sharded model has what ``number`` is taken of."""
    of = [number.func.value] if isinstance(number.func, cst.Attribute) else []
    facts = [value_of(one, file) for one in (*of, *(argument.value for argument in number.args))]
    return max(max(one.parameter, one.parameters, one.gradient, one.gradients, one.number) for one in facts)


def _numbers(owner: cst.ClassDef, file: File) -> list[cst.Call]:
    """The numbers that methods of ``owner`` take of tensors, without knowing of DTensors or collectives."""
    text = file.code(owner)
    if "param_groups" not in text or "all_reduce" in text:
        return []
    calls = [one for one in file.inside(owner, cst.Call) if isinstance(one.func, cst.Attribute)]
    return [one for one in calls if last_name(one.func) in NUMBERS and not is_aware(one, file)]
