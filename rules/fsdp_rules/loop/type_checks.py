"""Rule for tests of whether something is an FSDP1 module, and for annotations that say so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.class_tests import name_test, negation, subject_of_class
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.reads import is_read_whole
from fsdp_rules.file.tree import Code
from fsdp_rules.file.type_places import in_annotation, is_alias, is_tested, next_tests, other_tests, whole_of
from fsdp_rules.fsdp1.names import FSDP, canonical, expand
from fsdp_rules.loop._class_names import compared_names
from fsdp_rules.loop._members import among_members, skips
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

MODULE = "torch.distributed.fsdp.FSDPModule"
#: Classes that wrap a model or a block, and so are never the class of a sharded module itself.
WRAPPERS = re.compile(r"DDP|Parallel|OptimizedModule|Engine|CheckpointWrapper|FSDP")
#: FSDP2's class, and what projects with both call it.
FSDP2 = re.compile(r"FSDPModule|FSDP_?2|fsdp2")
DOTTED = re.compile(r"[A-Za-z_][\w.]*")


class TypeChecks(Rule):
    """isinstance(..., FullyShardedDataParallel).

    `fully_shard` gives a module a class that extends `FSDPModule`, so every test and annotation that uses FSDP1's class
    now uses `FSDPModule`. A test of the class name is rewritten in the same way. A missed test is silent: whole code
    paths are skipped. FSDP1's wrapper and its inner module were two objects. Now one object is both, which matters if
    the same object is also tested for another class. A class name that is compared in other ways, or looked up, is
    `manual`. If the code already tests for FSDP2's class, the FSDP1 branch has no effect.
    """

    id = "FSDP205"
    name = "type-check"
    what_to_test = EFFECT
    visits = (cst.Name, cst.Attribute, cst.Call, cst.Comparison, cst.SimpleString)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def unwrapped(model: "FSDP"):
    if not isinstance(model, FSDP) or type(model).__name__ != "FullyShardedDataParallel":
        raise TypeError("not sharded")
"""
    after = """
from torch.distributed.fsdp import FSDPModule

def unwrapped(model: "FSDPModule"):
    if not isinstance(model, FSDPModule) or not isinstance(model, FSDPModule):
        raise TypeError("not sharded")
"""

    def visit(
        self, node: cst.Name | cst.Attribute | cst.Call | cst.Comparison | cst.SimpleString, file: File
    ) -> Iterable[Diagnosis]:
        """A reference to the class where it is only asked for, its name in a comparison or in an annotation."""
        if type(node) is cst.Attribute or type(node) is cst.Call:
            yield from compared_names(node, file)
        if type(node) is cst.Name or type(node) is cst.Attribute:
            if file.fsdp1(node) == FSDP and is_read_whole(node, file.layout):
                yield from self._reference(node, file)
        elif isinstance(node, cst.Comparison):
            yield from self._name_test(node, file)
        elif type(node) is cst.SimpleString:
            yield from self._string(node, file) if file.settings.to != "shim" else ()

    def _name_test(self, node: cst.Comparison, file: File) -> Iterator[Diagnosis]:
        test = name_test(node)
        if test is None:
            return
        subject = file.code(test.subject)
        if "fsdp1" not in file.project.flags and FSDP not in map(canonical, file.aliases.values()):
            told = f"assumes {subject} is not a class of FSDP2, which has other names"
            yield Diagnosis(node, Level.REVIEW, told, "test isinstance(..., FSDPModule) for models that FSDP2 shards")
        elif not test.certain:
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"the class name differs under FSDP2, and a test of {subject} would evaluate it twice",
                "assign it to a variable, and add isinstance(..., FSDPModule) to the test",
            )
        else:
            module = file.ref(MODULE)
            yield Diagnosis(
                node,
                Level.SAFE,
                "FSDP2 classes have other names, but all extend FSDPModule",
                edits=(Replace(node, lambda code: test.text(module, code)),),
            )

    def _string(self, node: cst.SimpleString, file: File) -> Iterator[Diagnosis]:
        if not in_annotation(node, file):
            return
        found = {word for word in DOTTED.findall(node.raw_value) if canonical(expand(word, file.aliases)) == FSDP}
        if not found:
            return
        module = file.ref(MODULE)
        text = DOTTED.sub(lambda match: module if match.group() in found else match.group(), node.value)
        yield Diagnosis(
            node, Level.SAFE, "a sharded module is an FSDPModule", edits=(Replace(node, lambda code: text),)
        )

    def _reference(self, node: cst.BaseExpression, file: File) -> Iterator[Diagnosis]:
        whole, parent = whole_of(node, file)
        if parent is not None and whole is node and is_tested(whole, parent, file):
            test = cst.ensure_type(file.parent(parent), cst.Call)
            if (among := among_members(node, test, file)) is not None:
                yield among
                return
        if file.settings.to == "shim":
            # isinstance, annotations and patterns hold with fsdp_compat's class; its exact type is another one.
            if isinstance(parent, cst.Comparison | cst.ComparisonTarget):
                yield from self._comparison(node, whole, parent, file)
        elif isinstance(parent, cst.MatchClass):
            yield self._pattern(node, parent, file)
        elif _asks_whether_imported(whole, parent):
            yield _replaced(node, Level.SAFE, "torch has FSDPModule wherever it has fully_shard", file)
        elif isinstance(parent, cst.Comparison | cst.ComparisonTarget):
            yield from self._comparison(node, whole, parent, file)
        elif parent is not None and is_tested(whole, parent, file):
            yield self._isinstance(node, whole, parent, file)
        elif in_annotation(node, file) or is_alias(whole, parent, file):
            yield _replaced(node, Level.SAFE, "a sharded module is an FSDPModule", file)
        elif isinstance(parent, cst.FormattedStringExpression) and parent.expression is node:
            yield _replaced(node, Level.SAFE, "this text names the class of a sharded module", file)

    def _pattern(self, node: cst.BaseExpression, pattern: cst.MatchClass, file: File) -> Diagnosis:
        if pattern.patterns or pattern.kwds:
            return Diagnosis(
                node,
                Level.MANUAL,
                "this pattern reads attributes of FSDP1's wrapper, which an FSDPModule does not have",
                "match FSDPModule() and read the attributes of the model itself",
            )
        return _replaced(node, Level.SAFE, "a sharded module is an FSDPModule", file)

    def _comparison(
        self, node: cst.BaseExpression, whole: cst.BaseExpression, parent: cst.CSTNode, file: File
    ) -> Iterator[Diagnosis]:
        comparison = parent if isinstance(parent, cst.Comparison) else file.parent(parent)
        if not isinstance(comparison, cst.Comparison) or len(comparison.comparisons) != 1:
            return
        target = comparison.comparisons[0]
        subject = subject_of_class(target.comparator if whole is comparison.left else comparison.left)
        if subject is None:
            return
        module = file.ref(MODULE) if file.settings.to != "shim" else ""

        def build(code: Code) -> str:
            kinds = code(whole)
            if isinstance(whole, cst.List | cst.Set):
                kinds = f"({', '.join(code(element.value) for element in whole.elements)},)"
            return f"{negation(target.operator)}isinstance({code(subject)}, {kinds})"

        yield Diagnosis(
            node,
            Level.SAFE if whole is node else Level.REVIEW,
            "the class of a sharded module extends FSDPModule"
            + ("" if whole is node else ", assuming the other classes have no subclass that must not match"),
            edits=(*((Replace(node, lambda code: module),) if module else ()), Replace(comparison, build)),
        )

    def _isinstance(
        self, node: cst.BaseExpression, whole: cst.BaseExpression, parent: cst.CSTNode, file: File
    ) -> Diagnosis:
        call = cst.ensure_type(file.parent(parent), cst.Call)
        subject = file.code(call.args[0].value)
        others = list(other_tests(call, subject, file))
        if any(FSDP2.search(file.code(other.args[1].value)) for other in [*others, *next_tests(call, subject, file)]):
            return _beside_fsdp2(node, subject, file)
        message = "a sharded module is an FSDPModule"
        level = Level.SAFE
        if not file.project.wraps:
            level = Level.REVIEW
            message += ", assuming the other project that wraps the model moves to FSDP2 too"
        if "FSDPModule" in file.code(whole):
            return Diagnosis(node, Level.SAFE, message, edits=_without(node, whole, call, file), claims=(node,))
        for other in others:
            kinds = file.code(other.args[1].value)
            if not WRAPPERS.search(kinds):
                level = Level.REVIEW
                message += f", but {subject} can now be both an FSDPModule and {kinds}"
                break
        if skips(call, file):
            level = Level.REVIEW
            message += (
                ", but FSDP1's wrapper was skipped and its inner module was not: under FSDP2 they are one "
                "object, so it is skipped"
            )
        return _replaced(node, level, message, file)


def _asks_whether_imported(node: cst.BaseExpression, parent: cst.CSTNode | None) -> bool:
    """Whether ``node`` is only compared with None, or used as a flag, as names of guarded imports are."""
    if isinstance(parent, cst.Comparison) and parent.left is node and len(parent.comparisons) == 1:
        other = parent.comparisons[0].comparator
        return isinstance(other, cst.Name) and other.value == "None"
    if isinstance(parent, cst.If | cst.IfExp):
        return parent.test is node
    return isinstance(parent, cst.BooleanOperation) or (
        isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)
    )


def _beside_fsdp2(node: cst.BaseExpression, subject: str, file: File) -> Diagnosis:
    """The verdict about a test in code that has a part for FSDP2 already."""
    root = (dotted(node) or "").partition(".")[0]
    if file.aliases.get(root, "torch.").startswith("torch."):
        return Diagnosis(
            node, Level.REVIEW, f"{subject} is tested for FSDPModule as well, so the FSDP1 branch is no longer taken"
        )
    # The name's own file makes it another name of FSDPModule, which both tests ask for then.
    return Diagnosis(
        node,
        Level.MANUAL,
        f"{file.code(node)} becomes another name for FSDPModule, and {subject} is already tested for it",
        "remove the FSDP1 branch: every sharded module takes the first branch",
    )


def _replaced(node: cst.BaseExpression, level: Level, message: str, file: File) -> Diagnosis:
    module = file.ref(MODULE)
    return Diagnosis(node, level, message, edits=(Replace(node, lambda code: module),))


def _without(node: cst.BaseExpression, whole: cst.BaseExpression, call: cst.Call, file: File) -> tuple[Edit, ...]:
    """Take ``node`` out of ``whole``, which names FSDPModule already."""
    if isinstance(whole, cst.Tuple):
        kept = [element.value for element in whole.elements if element.value is not node]
        if len(kept) == 1:
            return (Replace(call, lambda code: f"{code(call.func)}({code(call.args[0].value)}, {code(kept[0])})"),)
        return (Replace(whole, lambda code: f"({', '.join(code(entry) for entry in kept)})"),)
    union = file.parent(node)
    if isinstance(union, cst.BinaryOperation):
        other = union.right if union.left is node else union.left
        return (Replace(union, lambda code: code(other)),)
    return ()
