"""The class that a module had before it was sharded, and its name: what code gets that asks a unit for its class."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.class_tests import is_bare_name
from fsdp_rules.file.expressions import calls_plainly, is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.loop._units import is_a_unit
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.sharded import Why, sharded
from fsdp_rules.model.wrapping import wrapping_call
from fsdp_rules.project.project import INNER, Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level

MODULE = "torch.distributed.fsdp.FSDPModule"
ADVICE = "test isinstance(..., FSDPModule), or the model's own class, which the sharded module extends"
#: Methods that run before anything shards the object.
FIRST = ("__init__", "__new__", "__init_subclass__", "__post_init__")


def is_inner(subject: cst.BaseExpression, file: File) -> bool:
    """Whether ``subject`` is what FSDP1's wrapper holds, as ``model.module``, or ``self`` of one, of its own class."""
    if isinstance(subject, cst.Name) and subject.value == "self":
        return _is_of_a_module(subject, file)
    if known_as("bare", subject, file):
        return True
    if not file.code(subject).endswith(INNER) or not isinstance(subject, cst.Attribute):
        return False
    return is_a_unit(subject.value, file) or sharded(subject.value, file).certainty is not Certainty.NO


def _is_of_a_module(node: cst.Name, file: File) -> bool:
    function = file.function(node)
    if function is None or function.name.value in FIRST or "fsdp1" not in file.project.flags:
        return False
    return file.project.owners.may_have(file.path, file.scope(node), "forward") or (
        sharded(node, file).certainty is not Certainty.NO
    )


def of_inner(node: cst.BaseExpression, subject: cst.BaseExpression, file: File) -> Diagnosis:
    """What to say of ``node``, the class of ``subject`` or its name, where FSDP1 gave the module's own."""
    text = file.code(subject)
    if is_bare_name(node):
        return _without_prefix(node, Level.SAFE, "FSDP2 puts FSDP before the name of a unit's class", file)
    if is_in_text(node, file) or not is_repeatable(subject):
        message = f"the class of {text} has changed: FSDP2 gives a unit a new class, with FSDP before the name"
        return Diagnosis(node, Level.MANUAL, message, ADVICE)
    module = file.ref(MODULE)

    def build(code: Code) -> str:
        text = f"{code(node)}.__bases__[1] if isinstance({code(subject)}, {module}) else {code(node)}"
        return text if isinstance(file.parent(node), cst.Index) else f"({text})"

    said = "FSDP2 gives a unit a class that extends FSDPModule and the module's own"
    return Diagnosis(node, Level.SAFE, said, edits=(Replace(node, build),))


def unprefixed(node: cst.BaseExpression, subject: cst.BaseExpression, file: File) -> Diagnosis:
    """What to say of ``node``, the name of the class of what may be FSDP1's wrapper or what that held."""
    message = (
        f"FSDP2 puts FSDP before the name of a unit's class, assuming {file.code(subject)} was not an FSDP1 wrapper"
    )
    return _without_prefix(node, Level.REVIEW, message, file)


def as_text(node: cst.BaseExpression, subject: cst.BaseExpression, file: File) -> Diagnosis | None:
    """The name of FSDP1's class in the place of ``node``, where its function has surely wrapped ``subject`` before."""
    made = wrapping_call(file.value(subject), file)
    if made is None or not is_bare_name(node) or sharded(subject, file).why is not Why.ABOVE:
        return None
    text = f"{_quote(node, file)}{FSDP}{_quote(node, file)}"
    said = "the name of the class of FSDP1's wrapper, which FSDP2 does not have"
    return Diagnosis(node, Level.SAFE, said, edits=(Replace(node, lambda code: text),))


def is_in_text(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is a whole class that is turned into a text, which says the module that it is of as well."""
    if isinstance(node, cst.Call) and calls_plainly(node, ("str", "repr"), 1):
        return True
    return isinstance(file.parent(node), cst.FormattedStringExpression)


def _without_prefix(node: cst.BaseExpression, level: Level, message: str, file: File) -> Diagnosis:
    prefix = f"{_quote(node, file)}FSDP{_quote(node, file)}"
    return Diagnosis(node, level, message, edits=(Replace(node, lambda code: f"{code(node)}.removeprefix({prefix})"),))


def _quote(node: cst.BaseExpression, file: File) -> str:
    """A quote that no text around ``node`` ends with, as Python before 3.12 asks for."""
    texts = [one for one in file.ancestors(node) if isinstance(one, cst.FormattedString)]
    return "'" if any('"' in one.end for one in texts) else '"'
