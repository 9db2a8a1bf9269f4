"""Rule for calls of a wrapped model that are not ``model(...)``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import call_of, given_to
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.given_by_call import is_given_by_call
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.wrap_given import wrap_given
from fsdp_rules.model.wrapping import is_sharded_by_fsdp2
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, InsertAfter, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: Methods that compute with parameters, by the names that people give them.
COMPUTES = re.compile(
    r"generate|sample|rollout|encode|decode|predict|infer|embed|score|logits"
    r"|(generate|sample|encode|decode|predict|forward|infer|embed|compute|score)_\w+"
    r"|get_(loss|logits|embeddings?|log_?probs?|\w+_features)|\w+_(forward|loss|step)"
)


class ForwardMethods(Rule):
    """Methods other than model(...).

    FSDP2 gathers parameters in hooks of the module's call. FSDP1's wrapper also gathered them in `model.forward(...)`,
    so that call becomes `model(...)`. Any other method, such as `generate`, bypassed the wrapper and ran on the inner
    module. It still works under `summon_full_params`, or if it only calls the module. Methods are recognised by common
    names. If their code is in the tree and the model has a `MixedPrecision`, they are also recognised by the modules
    that they run. If one uses parameters of the root directly, `register_fsdp_forward_method` makes FSDP2 gather them.
    It also casts the method's inputs. FSDP1 cast the inputs of the units that the method calls, if the model had never
    been called, saved or loaded. The call is added after the wrapping if that is in the same file. It changes no
    numbers.
    """

    id = "FSDP210"
    name = "forward-methods"
    markers = ("model.forward(", "model.generate(")
    what_to_test = "Call each of these methods (`generate`, for example) on a sharded model, on several processes."
    visits = (cst.Attribute,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def sample(model, tokens):
    model = FSDP(model)
    model.forward(tokens)
    return model.generate(tokens)
"""
    after = """
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

def sample(model, tokens):
    fully_shard(model)
    register_fsdp_forward_method(model, "generate")
    model(tokens)
    return model.generate(tokens)
"""

    def visit(self, node: cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """``model.forward`` in any form, and calls of methods that compute."""
        name = node.attr.value
        if name == "forward":
            yield from self._forward(node, file)
        elif (call := call_of(node, file)) is not None and (COMPUTES.fullmatch(name) or _casts_in(node, file)):
            yield from self._method(node, call, file)

    def _forward(self, node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
        held = sharded(node.value, file).certainty
        if held is Certainty.NO and is_given_by_call(node.value, file):
            held = Certainty.MAYBE
        if held is Certainty.NO:
            return
        name = file.code(node.value)
        message = "FSDP2 gathers parameters when the module is called, not in forward itself"
        if call_of(node, file) is not None:
            if held is Certainty.MAYBE:
                message = f"{message}, assuming {name} is the sharded model (or has no forward hooks)"
            level = Level.SAFE if held is Certainty.YES else Level.REVIEW
            yield Diagnosis(node, level, message, edits=(Replace(node, lambda code: code(node.value)),))
        elif held is Certainty.YES and not _inspected(node, file):
            yield Diagnosis(
                node, Level.MANUAL, message, f"call {name} itself, or change forward before the model is sharded"
            )
        else:
            yield Diagnosis(
                node, Level.REVIEW, f"{name}.forward is now the model's own method, not that of FSDP1's wrapper"
            )

    def _method(self, node: cst.Attribute, call: cst.Call, file: File) -> Iterator[Diagnosis]:
        model = node.value
        if isinstance(model, cst.Attribute) and model.attr.value == "module":
            model = model.value
        if sharded(model, file).certainty is not Certainty.YES:
            return
        name = node.attr.value
        if is_summoned(call, file):
            yield Diagnosis(node, Level.INFO, f"{name} runs under summon_full_params, so it gets whole parameters")
            return
        # One text for all methods: reports list the places of a text together.
        advice = (
            "if an assumption is wrong, call register_fsdp_forward_method(model, name of the method) after sharding"
        )
        wrapping = _wrapping(model, file)
        if wrapping is None or "summon_full_params" in file.text:
            message = (
                "this method runs units, assuming the model is called, saved or loaded first (FSDP1 casts otherwise)"
                if _casts_in(node, file)
                else "assumes this method uses no parameters, and no units before the first call, save or load "
                "(FSDP1 casts there)"
            )
            yield Diagnosis(node, Level.REVIEW, message, advice)
        elif _first(node, model, file):
            register = file.ref("torch.distributed.fsdp.register_fsdp_forward_method")
            target = file.code(model)
            line = f'{register}({target}, "{name}")'
            yield Diagnosis(
                node,
                Level.REVIEW,
                f"{name} runs outside the model's call, and is registered so that it gathers the root's parameters",
                edits=(InsertAfter(wrapping, lambda code: line),),
            )


def _casts_in(method: cst.Attribute, file: File) -> bool:
    """Whether ``method`` runs modules of a model of the tree that may be given a MixedPrecision."""
    given = wrap_given(method.value, file)
    return (
        known_as("runs_modules", method, file) and given.gives("mixed_precision", "mixed_precision") is not Certainty.NO
    )


def _inspected(node: cst.Attribute, file: File) -> bool:
    """Whether only what ``forward`` looks like is asked for: its signature, its name."""
    parent = file.parent(node)
    if isinstance(parent, cst.Attribute):
        return True
    call = given_to(node, file)
    return call is not None and (file.resolved(call.func) or "").startswith("inspect.")


def _wrapping(model: cst.BaseExpression, file: File) -> cst.Assign | None:
    """The one statement of the file that wraps ``model`` under the same name, in reach of ``model``."""
    target = file.code(model)
    owner = file.scope(model)
    if target.startswith("self."):
        owner = owner.rpartition(".")[0]
    found = []
    for statement in file.nodes(cst.Assign):
        if not file.calls(statement.value, FSDP) or len(statement.targets) != 1:
            continue
        if file.suppressions.ignored("FSDP101", statement) or file.suppressions.gated(statement) is not None:
            continue
        scope = file.scope(statement)
        if target.startswith("self."):
            scope = scope.rpartition(".")[0]
        if file.code(statement.targets[0].target) == target and scope == owner:
            found.append(statement)
    # A first run leaves some wraps as they are, and shards with FSDP2 where the others were.
    return found[0] if len(found) == 1 and not is_sharded_by_fsdp2(target, file) else None


def _first(node: cst.Attribute, model: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is the first place of its scope that calls this method of ``model``."""
    name, target, wrapping = node.attr.value, file.code(model), _wrapping(model, file)
    for entry in file.nodes(cst.Call):
        if not isinstance(entry.func, cst.Attribute) or entry.func.attr.value != name:
            continue
        other = entry.func.value
        if isinstance(other, cst.Attribute) and other.attr.value == "module":
            other = other.value
        if file.code(other) == target and _wrapping(other, file) is wrapping:
            return entry is file.parent(node)
    return True
