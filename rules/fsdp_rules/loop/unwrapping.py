"""Rule for functions and loops that take wrapper after wrapper off a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import elements, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.loop._unwrapping import is_passed_to_itself, test_around
from fsdp_rules.model.guards import Guard, tested
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT


class Unwrapping(Rule):
    """Loops and recursions over .module until no wrapper is left.

    `return unwrap(model.module)` under `isinstance(model, FSDP)` ends with FSDP1, whose wrapper holds another object.
    A model that `fully_shard` sharded is its own inner model and remains an FSDPModule, so such a test would hold for
    ever: the class is taken out of it. With `--to shim` `model.module` is the model itself, and the test asks for that
    as well.
    """

    id = "FSDP221"
    name = "unwrapping"
    words = (r"\.module\b",)
    alone = (r"\.module\b",)
    markers = (".module",)
    what_to_test = EFFECT
    visits = (cst.Attribute,)
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

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Every ``model.module`` that is looked at again by the same function or the same loop."""
        if not isinstance(node, cst.Attribute) or node.attr.value != "module" or file.resolved(node) is not None:
            return
        recursive = is_passed_to_itself(node, file)
        if not recursive and not _is_looped(node, file):
            return
        test = test_around(node, file)
        if test is None or not _may_meet_fsdp(test, file):
            return
        if file.settings.to == "shim":
            yield from self._shim(node, test, file)
        elif recursive:
            yield from self._native(node, test, file)

    def _shim(self, node: cst.Attribute, test: cst.BaseExpression, file: File) -> Iterator[Diagnosis]:
        subject = file.code(node.value)
        if f"{subject}.module is not {subject}" in file.code(test):
            return
        kinds = _kinds(test, file)
        if kinds and all((file.resolved(kind) or "").startswith("torch.nn.parallel") for kind in kinds):
            return
        either = isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or)

        def build(code: Code) -> str:
            text = f"({code(test)})" if either else code(test)
            return f"{text} and {subject}.module is not {subject}"

        yield Diagnosis(
            test,
            Level.SAFE,
            f"{subject}.module is {subject} itself under fsdp_compat, so the test asks for that too",
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
                "FSDP2 has no wrapper to remove, the other wrappers are removed as before",
                edits=(Replace(test, lambda code: f"isinstance({subject}, {text})"),),
                claims=tuple(names_in(test)),
            )
        elif guard in (Guard.FSDP1, Guard.MIXED):
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"this never ends under FSDP2, where {subject} remains an FSDPModule",
                f"remove it for the sharded model: {subject} itself is the model",
            )


def _kinds(test: cst.BaseExpression, file: File) -> list[cst.BaseExpression]:
    """The classes that the ``isinstance`` of ``test`` asks for, as far as they are known."""
    found: list[cst.BaseExpression] = []
    for call in file.inside(test, cst.Call):
        if dotted(call.func) == "isinstance" and len(call.args) == 2:
            kinds = file.value(call.args[1].value)
            found += elements(kinds) or [kinds]
    return found


def _is_looped(node: cst.Attribute, file: File) -> bool:
    """Whether ``node`` is assigned to its own receiver in a ``while``."""
    statement = file.parent(node)
    if not isinstance(statement, cst.Assign):
        return False
    own = [file.code(target.target) for target in statement.targets] == [file.code(node.value)]
    return own and any(isinstance(entry, cst.While) for entry in file.ancestors(node))


def _may_meet_fsdp(test: cst.BaseExpression, file: File) -> bool:
    if any(file.fsdp1(name) == FSDP for name in file.inside(test, cst.Attribute)):
        return True
    return "fsdp1" in file.project.flags or any(canonical(target) == FSDP for target in file.aliases.values())
