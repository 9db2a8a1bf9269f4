"""Rule for code that asks a model for a name that only FSDP2's modules have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.ancestors import branches, tests_around
from fsdp_rules.file.class_tests import subject_of_class
from fsdp_rules.file.expressions import asked, brief, calls_plainly
from fsdp_rules.file.file import File
from fsdp_rules.file.own_names import is_in_own
from fsdp_rules.file.type_places import TESTS, next_tests, other_tests
from fsdp_rules.fsdp1.added_names import added_names
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.model.sharded import sharded_part, sharded_value
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import LOSSES

#: What a test says where the project shards by FSDP2 already.
BY_FSDP2 = re.compile(r"FSDPModule|FSDP_?2|fsdp_?version|fully_shard", re.IGNORECASE)
#: FSDP2's class by all of its names.
MODULE = re.compile(r"torch\.distributed\.(_composable\.)?fsdp\.([\w.]+\.)?FSDPModule")
KEEP = "to train as before, remove the branch that calls {name}; or keep it and compare the losses"
#: Exceptions that a missing attribute raises, by which code goes on without it.
MISSING = frozenset({"AttributeError", "Exception", "BaseException"})


class NewNames(Rule):
    """hasattr(model, "set_requires_gradient_sync").

    Modules that `fully_shard` has sharded have methods that neither FSDP1's wrapper nor the module in it has:
    `set_requires_gradient_sync`, `set_is_last_backward`, `unshard`, `reshard` and others. Code that tests for one of
    them (`hasattr`, `getattr` with a default, a caught AttributeError) took the other branch under FSDP1, and calls the
    method under FSDP2. For example, gradients that were reduced in each backward are now accumulated unreduced, with
    different rounding. `isinstance(model, FSDPModule)` is such a test if FSDP1 wraps the model. The code is not
    changed. Places that are only reached after a test for FSDP2 have no finding, nor do tests next to one for FSDP1's
    class.
    """

    id = "FSDP241"
    name = "new-names"
    shim = True
    what_to_test = LOSSES
    visits = (cst.Call, cst.Attribute)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def validate(net, batch):
    net = FSDP(net)
    loss = net(batch).sum()
    if hasattr(net, "reshard"):
        net.reshard()
    return loss
"""
    after = """
from torch.distributed.fsdp import fully_shard

def validate(net, batch):
    fully_shard(net)
    loss = net(batch).sum()
    # TODO(fsdp-migrate FSDP241): FSDP1's models have no reshard, FSDP2's do: "net.reshard()" was skipped and now runs
    if hasattr(net, "reshard"):
        net.reshard()
    return loss
"""

    def visit(self, node: cst.Call | cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """A question for a name, or a use whose failure is caught."""
        if isinstance(node, cst.Call) and _asks_for_class(node, file):
            if not _is_for_fsdp2(node, file):
                message = f"FSDP1's models are not FSDPModule, FSDP2's are: {_ways(node, 'this test', file)}"
                yield Diagnosis(node, Level.MANUAL, message, KEEP.format(name="the code for FSDPModule"))
        elif isinstance(node, cst.Call):
            question = asked(node)
            if question is None or question.name not in added_names():
                return
            if question.function == "getattr" and not question.has_default and _caught_at(node, file) is None:
                return
            yield from _about(node, question.subject, question.name, file)
        elif (
            isinstance(node, cst.Attribute) and node.attr.value in added_names() and _caught_at(node, file) is not None
        ):
            yield from _about(node, node.value, node.attr.value, file)


def _asks_for_class(call: cst.Call, file: File) -> bool:
    """Whether ``call`` tests for FSDP2's class alone what may be a model that FSDP1 wraps, or a part of one."""
    if not calls_plainly(call, TESTS, 2) or is_in_own(call, file):
        return False
    subject, kinds = call.args[0].value, call.args[1].value
    named = [kinds, *file.inside(kinds, cst.Name), *file.inside(kinds, cst.Attribute)]
    if not any(MODULE.fullmatch(file.resolved(one) or "") for one in named):
        return False
    model = subject_of_class(subject) or subject
    fact = file.project.values.at(file.path, file.span(model))
    text = file.code(subject)
    others = [*other_tests(call, text, file), *next_tests(call, text, file)]
    tested = [kinds, *(other.args[1].value for other in others)]
    of_fsdp1 = any(file.fsdp1(one) == FSDP for kind in tested for one in (kind, *file.inside(kind, cst.Name)))
    return not of_fsdp1 and max(fact.model, fact.part) is not Certainty.NO


def _about(node: cst.BaseExpression, subject: cst.BaseExpression, name: str, file: File) -> Iterator[Diagnosis]:
    model = subject_of_class(subject) or subject
    held = max(sharded_value(model, file), sharded_part(model, file))
    if held is Certainty.NO or is_not_sharded_yet(node, model, file) or _is_for_fsdp2(node, file):
        return
    unsure = "" if held is Certainty.YES else f"if {file.code(model)} is sharded: "
    yield Diagnosis(
        node,
        Level.MANUAL,
        f"{unsure}FSDP1's models have no {name}, FSDP2's do: {_ways(node, name, file)}",
        KEEP.format(name=name),
    )


def _ways(node: cst.CSTNode, name: str, file: File) -> str:
    """What ran where a model had no such name, and what runs where it has one."""
    old, new = "", ""
    for owner, child in branches(node, file):
        if isinstance(owner, cst.If | cst.IfExp | cst.While) and child is owner.test:
            old, new = _start(owner.orelse, file), _start(owner.body, file)
            if isinstance(child, cst.UnaryOperation) and isinstance(child.operator, cst.Not):
                old, new = new, old
        elif isinstance(owner, cst.Try) and child is owner.body:
            old, new = _start(owner.handlers[0].body, file), brief(file.code(node), 40)
        if isinstance(owner, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            break
    new = new or f"what {name} leads to"
    return f'"{old}" ran, and now "{new}" does' if old else f'"{new}" was skipped and now runs'


def _start(branch: cst.CSTNode | None, file: File) -> str:
    """The first line of ``branch``, "" where there is none."""
    body = branch.body if isinstance(branch, cst.Else) else branch
    first = body.body[0] if isinstance(body, cst.BaseSuite) and body.body else body
    return "" if first is None else brief(file.code(first).strip().splitlines()[0], 40)


def _caught_at(node: cst.CSTNode, file: File) -> cst.CSTNode | None:
    """The statement in which it is caught that ``node`` finds no attribute; None where nothing catches it."""
    for owner, child in branches(node, file):
        if (
            isinstance(owner, cst.Try)
            and child is owner.body
            and any(_catches(one.type, file) for one in owner.handlers)
        ):
            return owner
        if (
            isinstance(owner, cst.With)
            and child is owner.body
            and any(_suppresses(one.item, file) for one in owner.items)
        ):
            return owner
        if isinstance(owner, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            return None
    return None


def _catches(caught: cst.BaseExpression | None, file: File) -> bool:
    return caught is None or bool(MISSING & set(re.findall(r"\w+", file.code(caught))))


def _suppresses(item: cst.BaseExpression, file: File) -> bool:
    if not isinstance(item, cst.Call) or file.resolved(item.func) != "contextlib.suppress":
        return False
    return any(_catches(argument.value, file) for argument in item.args)


def _is_for_fsdp2(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is only reached where a test has said that the model is FSDP2's."""
    return any(truth and BY_FSDP2.search(file.code(test)) for test, truth in tests_around(node, file))
