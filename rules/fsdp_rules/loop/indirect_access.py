"""Rule for what is taken of a model by a text, or by a function that is given the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import asked, elements, literal_text
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.api import entries
from fsdp_rules.fsdp1.methods import METHODS
from fsdp_rules.loop._names_at_run_time import about_runtime_name
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

#: Methods of FSDP1's class that a sharded model lacks, or has with another meaning.
CHANGED = frozenset(entry.name for entry in entries() if entry.kind == "method" and entry.rewriter != "no-op") - {
    "forward"
}
#: Those that every module has.
OF_MODULES = frozenset({"apply", "load_state_dict", "state_dict"})
#: Those whose own rules look for getattr and hasattr.
ASKED = frozenset({"clip_grad_norm_", "module", "no_sync"})
#: Those that a class gives unbound. FSDP1's static methods are rewritten through an instance as they are elsewhere.
BOUND = OF_MODULES | {"clip_grad_norm_", "no_sync", "zero_grad"}
#: The methods and the property of an FSDP1 model that are not the same in FSDP2.
NAMED = ("module", *sorted((CHANGED | BOUND) & METHODS, key=lambda name: (name not in BOUND, name)))
#: What is called later gives the model, which no analysis of its names sees.
WEAK = ("weakref.ref", "weakref.proxy")


class IndirectAccess(Rule):
    """operator.attrgetter("module").

    A wrapper attribute that is named by a string (`getattr`, `operator.attrgetter`, `operator.methodcaller`,
    `functools.reduce(getattr, ...)`), or a method that is called on a class with the model as argument
    (`nn.Module.state_dict(model)`), is not rewritten. If you write it as `model.name`, this tool rewrites it. A name
    that is only known at run time (`getattr(model, name)`) is reported, unless none of its possible values is such an
    attribute.
    """

    id = "FSDP235"
    name = "indirect-access"
    what_to_test = EFFECT
    visits = (cst.Call,)
    before = """
import operator

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def run(net):
    model = FSDP(net)
    return operator.attrgetter("module.config")(model)
"""
    after = """
import operator

from torch.distributed.fsdp import fully_shard

def run(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP235): "module" is read from the model by name, and means something else under FSDP2
    return operator.attrgetter("module.config")(model)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """A call that takes one of FSDP1's names of what it is given."""
        if file.resolved(node.func) in WEAK and node.args:
            yield from _weak(node, file)
        yield from about_runtime_name(node, NAMED, file)
        for model, names in _taken(node, file):
            place = next((place for place, name in enumerate(names) if name in CHANGED | BOUND), None)
            held = Certainty.NO if place is None else _held(model, names[:place], file)
            if place is None or held is Certainty.NO or is_not_sharded_yet(node, model, file):
                continue
            found, written = names[place], ".".join([file.code(model), *names[: place + 1]])
            unsure = "" if held is Certainty.YES else "if this model is sharded: "
            yield Diagnosis(
                node,
                Level.MANUAL,
                f'{unsure}"{found}" is read from the model by name, and means something else under FSDP2',
                f"write {written} as an attribute, and run this tool again",
            )
            return


def _weak(call: cst.Call, file: File) -> Iterator[Diagnosis]:
    model = call.args[0].value
    if sharded(model, file).certainty is not Certainty.NO and not is_not_sharded_yet(call, model, file):
        yield Diagnosis(
            call,
            Level.REVIEW,
            f"assumes this reference to {file.code(model)} reads nothing that FSDP2 lacks",
            "look for .module, state dicts, zero_grad and arithmetic on gradients where the reference is used",
        )


def _held(owner: cst.BaseExpression, names: list[str], file: File) -> Certainty:
    """How sure it is that ``owner``, or its attribute behind ``names``, is a sharded model."""
    if not names:
        return sharded(owner, file).certainty
    return Certainty.MAYBE if file.project.may_hold(names[-1]) else Certainty.NO


def _taken(call: cst.Call, file: File) -> Iterator[tuple[cst.BaseExpression, list[str]]]:
    """What ``call`` takes attributes of, and their names from the outermost on."""
    given = [argument.value for argument in call.args if not argument.star]
    question = asked(call)
    if question is not None:
        passed = ASKED | (OF_MODULES if question.function == "hasattr" else frozenset())
        yield question.subject, [question.name] if question.name not in passed else []
    maker = file.value(call.func)
    if isinstance(maker, cst.Call) and given:
        kind = file.resolved(maker.func)
        if kind in ("operator.attrgetter", "operator.methodcaller"):
            texts = [literal_text(argument.value) or "" for argument in maker.args]
            for text in texts if kind.endswith("attrgetter") else texts[:1]:
                yield given[0], text.split(".")
    elif isinstance(call.func, cst.Attribute):
        method, owner = call.func.attr.value, call.func.value
        if method in ("__getattr__", "__getattribute__") and given:
            yield owner, [literal_text(given[0]) or ""]
        elif method in BOUND and given and _is_class_of(given[0], owner, file):
            yield given[0], [method]
    if file.resolved(call.func) == "functools.reduce" and len(given) == 3 and file.code(given[0]) == "getattr":
        yield given[2], [literal_text(entry) or "" for entry in elements(file.objects.origin(given[1])) or []]


def _is_class_of(model: cst.BaseExpression, owner: cst.BaseExpression, file: File) -> bool:
    text = file.code(model)
    return file.code(owner) in (f"type({text})", f"{text}.__class__") or file.resolved(owner) == "torch.nn.Module"
