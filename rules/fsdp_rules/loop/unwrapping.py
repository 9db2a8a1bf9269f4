"""Rule for functions and loops that take wrapper after wrapper off a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import elements, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.loop._unwrapping import (
    INNER,
    assigned_by,
    has_other_arm,
    is_looped,
    is_passed_to_itself,
    reassigned,
    test_around,
)
from fsdp_rules.model.asked_modules import changes
from fsdp_rules.model.guards import Guard, guard_of, tested
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

BY_NAME = re.compile(r"__class__|__name__")
ADVICE = (
    "remove it for the sharded model, which is its own inner model. For other wrappers, keep it and test for "
    "their class"
)


class Unwrapping(Rule):
    """Loops and recursions over .module until no wrapper is left.

    `return unwrap(model.module)` under `isinstance(model, FSDP)` ends under FSDP1, whose wrapper contains another
    object. A model sharded by `fully_shard` is its own inner model and remains an FSDPModule, so such a test would be
    true forever: the class is removed from it. With `--to shim`, `model.module` is the model itself, and the test
    checks for that as well.
    """

    id = "FSDP221"
    name = "unwrapping"
    alone = (r"\.module\b",)
    markers = (".module",)
    what_to_test = EFFECT
    visits = (cst.Attribute, cst.Call, cst.While)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

def unwrap(model):
    if isinstance(model, (DDP, FSDP)):
        return unwrap(model.module)
    return model
"""
    after = """
from torch.nn.parallel import DistributedDataParallel as DDP

def unwrap(model):
    if isinstance(model, DDP):
        return unwrap(model.module)
    return model
"""

    def visit(self, node: cst.Attribute | cst.Call | cst.While, file: File) -> Iterable[Diagnosis]:
        """Every ``model.module`` that is looked at again by the same function or the same loop."""
        if isinstance(node, cst.Call):
            yield from self._asked(node, file)
        if isinstance(node, cst.While) and (subject := reassigned(node, file)) is not None:
            yield self._endless(node, subject, file)
        if not isinstance(node, cst.Attribute) or node.attr.value not in INNER or file.resolved(node) is not None:
            return
        is_shim = file.settings.to == "shim"
        recursive = is_passed_to_itself(node, file)
        if not (recursive or is_looped(node, file)) or (node.attr.value != "module" and not is_shim):
            return
        test = test_around(node, file)
        if not _may_meet_fsdp(test, file):
            return
        if test is None:
            if _is_about_a_model(node.value, file):
                yield self._endless(node, node.value, file)
        elif is_shim and not recursive and has_other_arm(node, file):
            yield self._endless(node, node.value, file)
        elif is_shim:
            yield from self._shim(node, test, file)
        elif recursive:
            yield from self._native(node, test, file)
        elif not isinstance(test, cst.UnaryOperation) and not _is_removed(node, test, file):
            yield self._endless(node, node.value, file)

    def _endless(self, node: cst.CSTNode, subject: cst.BaseExpression, file: File) -> Diagnosis:
        text = file.code(subject)
        why = f"{text}.module is {text} itself" if file.settings.to == "shim" else f"{text} remains an FSDPModule"
        name = "fsdp_compat" if file.settings.to == "shim" else "FSDP2"
        return Diagnosis(node, Level.MANUAL, f"this may never end under {name}, because {why}", ADVICE)

    def _asked(self, call: cst.Call, file: File) -> Iterator[Diagnosis]:
        """``getattr(model, "module")``, which no other rule rewrites."""
        if dotted(call.func) != "getattr" or len(call.args) < 2 or "fsdp1" not in file.project.flags:
            return
        subject, name = call.args[0].value, call.args[1].value
        if not isinstance(name, cst.SimpleString) or name.evaluated_value not in INNER:
            return
        guard = guard_of(call, file.code(subject), file)
        if file.settings.to == "shim":
            if any(isinstance(entry, cst.While) for entry in file.ancestors(call)) and _is_about_a_model(subject, file):
                yield self._endless(call, subject, file)
        elif len(call.args) == 2 and guard in (Guard.FSDP1, Guard.MIXED) and not changes(call, file):
            text = file.code(subject)
            yield Diagnosis(
                call, Level.MANUAL, f"{text} has no {name.evaluated_value} under FSDP2: this raises", ADVICE
            )

    def _shim(self, node: cst.Attribute, test: cst.BaseExpression, file: File) -> Iterator[Diagnosis]:
        subject = file.code(node.value)
        inner = f"{subject}.{node.attr.value}"
        if f"{inner} is not {subject}" in file.code(test):
            return
        kinds = _kinds(test, file)
        if kinds and all((file.resolved(kind) or "").startswith("torch.nn.parallel") for kind in kinds):
            return
        either = isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or)

        def build(code: Code) -> str:
            text = f"({code(test)})" if either else code(test)
            return f"{text} and {inner} is not {subject}"

        yield Diagnosis(
            test,
            Level.SAFE,
            f"{inner} is {subject} itself under fsdp_compat, so the test checks for that too",
            edits=(Replace(test, build),),
        )

    def _native(self, node: cst.Attribute, test: cst.BaseExpression, file: File) -> Iterator[Diagnosis]:
        subject = file.code(node.value)
        guard = tested(test, subject, file)
        kinds = _kinds(test, file)
        others = [kind for kind in kinds if file.fsdp1(kind) != FSDP]
        if guard is Guard.MIXED and isinstance(test, cst.Call) and others:
            names = ", ".join(file.code(kind) for kind in others)
            text = names if len(others) == 1 else f"({names})"
            yield Diagnosis(
                test,
                Level.SAFE,
                "FSDP2 has no wrapper to remove, and other wrappers are removed as before",
                edits=(Replace(test, lambda code: f"isinstance({subject}, {text})"),),
                claims=tuple(names_in(test)),
            )
        elif guard in (Guard.FSDP1, Guard.MIXED):
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"this raises or never ends under FSDP2, where {subject} remains an FSDPModule without .module",
                f"remove it for the sharded model: {subject} itself is the model",
            )
        elif guard is Guard.NONE and BY_NAME.search(file.code(test)):
            yield self._endless(node, node.value, file)


def _kinds(test: cst.BaseExpression, file: File) -> list[cst.BaseExpression]:
    """The classes that the ``isinstance`` of ``test`` asks for, as far as they are known."""
    found: list[cst.BaseExpression] = []
    for call in file.inside(test, cst.Call):
        if dotted(call.func) == "isinstance" and len(call.args) == 2:
            kinds = file.value(call.args[1].value)
            found += elements(kinds) or [kinds]
    return found


def _is_removed(node: cst.Attribute, test: cst.BaseExpression, file: File) -> bool:
    """Whether the loop over ``node`` ends by itself under FSDP2, or FSDP206 speaks about it."""
    guard, statement = tested(test, file.code(node.value), file), assigned_by(node, file)
    own = statement is not None and file.code(statement.targets[0].target) == file.code(node.value)
    return guard is Guard.OTHER or (own and guard is not Guard.NONE)


def _is_about_a_model(subject: cst.BaseExpression, file: File) -> bool:
    """Whether ``subject`` may be a sharded model, or its function names FSDP1's class."""
    if sharded(subject, file).certainty is not Certainty.NO:
        return True
    whole = file.function(subject) or file.module
    return any(file.fsdp1(name) == FSDP for name in file.inside(whole, cst.Name)) or "AttributeError" in file.code(
        whole
    )


def _may_meet_fsdp(test: cst.BaseExpression | None, file: File) -> bool:
    if test is not None and any(file.fsdp1(name) == FSDP for name in file.inside(test, cst.Attribute)):
        return True
    return "fsdp1" in file.project.flags or any(canonical(target) == FSDP for target in file.aliases.values())
