"""Rule for the attribute ``module`` of a wrapped model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import calls_plainly, elements, is_repeatable, names_in
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.loop._units import is_a_unit
from fsdp_rules.loop._unwrapping import endless, ends_by_unwrapping, is_passed_to_itself, unguarded_twin
from fsdp_rules.model.asked_modules import asks_around
from fsdp_rules.model.guards import Guard, guard_of, is_under_another_wrapper, is_under_hasattr, tested
from fsdp_rules.model.passes import excludes
from fsdp_rules.model.sharded import sharded, sharded_part
from fsdp_rules.model.unbound_names import is_only_binding, unbound
from fsdp_rules.model.wrappers import is_wrapped_here, other_wrapper
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, Edit, Replace, ReplaceStatement, remove
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

PRIVATE = "_fsdp_wrapped_module"
DDP = re.compile(r"DistributedDataParallel|\bDDP\b")


class ModuleAccess(Rule):
    """.module on a sharded model.

    FSDP2 has no wrapper: `model.module` and `model._fsdp_wrapped_module` are the model itself. If a name may be the
    sharded model or a DistributedDataParallel wrapper, `getattr(model, "module", model)` works for both. Code that
    tests `hasattr(model, "module")` first is unchanged if both branches do the same.
    """

    id = "FSDP206"
    name = "module-access"
    markers = (".module",)
    what_to_test = EFFECT
    visits = (cst.Attribute, cst.While)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, batch):
    model = FSDP(model)
    return model.module.config.loss_weight * model(batch)

def unwrap(model):
    return model.module if isinstance(model, FSDP) else model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def train(model, batch):
    fully_shard(model)
    return model.config.loss_weight * model(batch)

def unwrap(model):
    return model
"""

    def visit(self, node: cst.Attribute | cst.While, file: File) -> Iterable[Diagnosis]:
        """An access to the attribute, or a loop that strips all wrappers."""
        if isinstance(node, cst.While):
            yield from self._loop(node, file)
        elif node.attr.value in ("module", PRIVATE) and not file.resolved(node):
            yield from self._access(node, file)

    def _access(self, node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
        receiver = node.value
        subject = file.code(receiver)
        if _in_stripping_loop(node, file) or is_passed_to_itself(node, file):
            if node.attr.value == PRIVATE and not is_under_hasattr(node, subject, PRIVATE, file):
                yield endless(node, subject)
            return
        guard = guard_of(node, subject, file)
        if guard is Guard.OTHER and asks_around(node, subject, file):
            guard = Guard.NONE
        held = sharded(receiver, file).certainty
        seen = (is_a_unit, _is_given_to_fsdp1, sharded_part)
        if held is Certainty.NO and any(asked(receiver, file) for asked in seen):
            held = Certainty.MAYBE
        if guard is Guard.OTHER and node.attr.value == PRIVATE and not is_under_hasattr(node, subject, PRIVATE, file):
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{PRIVATE} exists only on FSDP1 wrappers, but the test above is for another class",
                f"check what {subject} is under FSDP2, where the sharded model is the model itself",
            )
            return
        if guard is Guard.OTHER or (guard is Guard.NONE and held is Certainty.NO and node.attr.value != PRIVATE):
            return
        if guard is Guard.NONE and held is Certainty.MAYBE and is_under_another_wrapper(node, file):
            return
        if guard in (Guard.FSDP1, Guard.MIXED) and ends_by_unwrapping(node, file):
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"this loop never ends under FSDP2, where {subject} remains an FSDPModule",
                f"remove the loop for the sharded model: {subject} itself is the model",
            )
            return
        certain = guard is Guard.FSDP1 or node.attr.value == PRIVATE or is_a_unit(receiver, file)
        if guard is Guard.NONE and held is Certainty.YES:
            alone = "ddp" not in file.project.flags or _wraps_with_fsdp_alone(file) or is_wrapped_here(receiver, file)
            certain = certain or (alone and other_wrapper(receiver, file) is Certainty.NO)
        if isinstance(file.parent(node), cst.AssignTarget | cst.AugAssign | cst.Del):
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{subject} is sharded in place, so it has no {node.attr.value} to assign to or delete",
                "replace submodules of the model itself, before it is sharded",
            )
        elif node.attr.value == PRIVATE and guard is Guard.NONE and "fsdp1" not in file.project.flags:
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{PRIVATE} exists only on FSDP1 wrappers, and this project's FSDP call was not found",
                f"use {subject} itself: under FSDP2 it is the model",
            )
        elif isinstance(outer := file.parent(node), cst.Attribute) and outer.attr.value == "__call__":
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{subject}.{node.attr.value}.__call__ bypassed FSDP1's hooks: under FSDP2 __call__ runs them",
                f"call {subject}.forward to run without FSDP2's hooks",
            )
        elif certain:
            edits = self._itself(node, file)
            gone = edits[0].node
            if not isinstance(gone, cst.BaseExpression) and is_only_binding(gone, subject, file):
                yield unbound(gone, subject)
                return
            if not isinstance(gone, cst.BaseExpression) and (twin := unguarded_twin(node, gone, file)) is not None:
                yield twin
                return
            yield Diagnosis(
                node,
                Level.SAFE,
                f"FSDP2 has no wrapper: {subject} is the model itself",
                edits=edits,
                claims=tuple(names_in(gone.test)) if isinstance(gone, cst.If) else (),
            )
        else:
            yield from self._either(node, file)

    def _either(self, node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
        receiver = node.value
        subject = file.code(receiver)
        if "module_attribute" in file.project.flags or not is_repeatable(receiver):
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{subject} may be the sharded model, which has no .module under FSDP2",
                f"use {subject} itself if it is sharded, and .module if it is another wrapper",
            )
            return

        def either(code: Code) -> str:
            return f'getattr({code(receiver)}, "module", {code(receiver)})'

        yield Diagnosis(
            node,
            Level.REVIEW,
            f"assumes {subject} is the sharded model or a wrapper with .module (the model itself has no such "
            "attribute)",
            edits=self._instead(node, either, file),
        )

    def _itself(self, node: cst.Attribute, file: File) -> tuple[Edit, ...]:
        subject = file.code(node.value)
        whole = _conditional(node, subject, file) or node
        statement = file.parent(whole)
        if isinstance(statement, cst.Assign) and [file.code(entry.target) for entry in statement.targets] == [subject]:
            return (remove(_only_statement_of(statement, subject, file) or statement),)
        return self._instead(node, lambda code: code(node.value), file)

    def _instead(self, node: cst.Attribute, build: Build, file: File) -> tuple[Edit, ...]:
        whole = _conditional(node, file.code(node.value), file) or node
        return (Replace(whole, build),)

    def _loop(self, loop: cst.While, file: File) -> Iterator[Diagnosis]:
        stripped = _stripped(loop, file)
        if stripped is None:
            return
        guard = tested(loop.test, file.code(stripped), file)
        if guard is Guard.FSDP1 and is_only_binding(loop, file.code(stripped), file):
            yield unbound(loop, file.code(stripped))
            return
        inner = file.parent(stripped)
        if guard is Guard.FSDP1 and isinstance(inner, cst.Attribute) and (twin := unguarded_twin(inner, loop, file)):
            yield twin
            return
        if guard is Guard.FSDP1:
            claims = tuple(names_in(loop.test))
            yield Diagnosis(loop, Level.SAFE, "FSDP2 has no wrapper to remove", edits=(remove(loop),), claims=claims)
            return
        if guard is not Guard.MIXED or not isinstance(loop.test, cst.Call) or not _names_classes(loop.test):
            return
        classes = elements(file.value(loop.test.args[1].value)) or []
        others = [entry for entry in classes if file.fsdp1(entry) != FSDP]

        def build(code: Code) -> str:
            names = ", ".join(code(entry) for entry in others)
            subject = code(stripped)
            kinds = names if len(others) == 1 else f"({names})"
            return f"while isinstance({subject}, {kinds}):\n    {subject} = {subject}.module"

        yield Diagnosis(
            loop,
            Level.SAFE,
            "FSDP2 has no wrapper to remove, and other wrappers are removed as before",
            edits=(ReplaceStatement(loop, build),),
            claims=tuple(names_in(loop.test)),
        )


def _conditional(node: cst.Attribute, subject: str, file: File) -> cst.IfExp | None:
    """The ``model.module if ... else model`` around ``node``, whose other arm is the model itself."""
    parent = file.parent(node)
    if not isinstance(parent, cst.IfExp) or guard_of(node, subject, file) is Guard.NONE:
        return None
    other = parent.orelse if parent.body is node else parent.body
    simple = isinstance(parent.test, cst.Call | cst.Comparison | cst.UnaryOperation)
    return parent if simple and file.code(other) == subject else None


def _only_statement_of(statement: cst.Assign, subject: str, file: File) -> cst.If | None:
    """The ``if isinstance(...)`` without any other content than ``statement``."""
    block = file.parent(file.parent(statement) or statement)
    owner = file.parent(block) if block is not None else None
    if not isinstance(owner, cst.If) or owner.orelse is not None or isinstance(file.parent(owner), cst.If):
        return None
    if file.block(statement) != [statement] or not isinstance(owner.test, cst.Call | cst.Comparison):
        return None
    return owner if tested(owner.test, subject, file) is Guard.FSDP1 else None


def _stripped(loop: cst.While, file: File) -> cst.BaseExpression | None:
    """``model`` where the loop's only statement is ``model = model.module``."""
    body = loop.body.body
    line = body[0] if len(body) == 1 else None
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else line
    if not isinstance(small, cst.Assign) or not isinstance(small.value, cst.Attribute) or loop.orelse is not None:
        return None
    inner = small.value
    if inner.attr.value != "module" or [file.code(entry.target) for entry in small.targets] != [file.code(inner.value)]:
        return None
    return inner.value


def _names_classes(test: cst.BaseExpression) -> bool:
    return calls_plainly(test, ("isinstance",), 2)


def _in_stripping_loop(node: cst.Attribute, file: File) -> bool:
    return any(
        isinstance(ancestor, cst.While)
        and _stripped(ancestor, file) is not None
        and tested(ancestor.test, file.code(node.value), file)
        in ((Guard.FSDP1, Guard.MIXED) if _names_classes(ancestor.test) else (Guard.FSDP1,))
        for ancestor in file.ancestors(node)
    )


def _is_given_to_fsdp1(receiver: cst.BaseExpression, file: File) -> bool:
    """Whether a way through the function gives ``receiver`` to one of FSDP1's functions, which take wrapped models."""
    function, subject = file.function(receiver), file.code(receiver)
    return function is not None and any(
        (file.fsdp1(call.func) or "").startswith(f"{FSDP}.")
        and any(file.code(argument.value) == subject for argument in call.args)
        and not excludes(call, receiver, file)
        for call in file.inside(function, cst.Call)
    )


def _wraps_with_fsdp_alone(file: File) -> bool:
    """Whether the file wraps models itself, none of them with DistributedDataParallel."""
    wraps = any(file.fsdp1(call.func) == FSDP for call in file.nodes(cst.Call))
    return wraps and not DDP.search(file.text)
