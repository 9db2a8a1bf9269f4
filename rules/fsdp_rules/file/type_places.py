"""Where a class may stand that is only asked for: tests, unions and tuples of classes, annotations."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.expressions import call_of, calls_plainly
from fsdp_rules.file.file import File

TESTS = ("isinstance", "issubclass")


def whole_of(node: cst.BaseExpression, file: File) -> tuple[cst.BaseExpression, cst.CSTNode | None]:
    """The tuple, union or the like of classes that ``node`` is part of (or itself), and what that stands in."""
    whole, parent = node, file.parent(node)
    while True:
        if isinstance(parent, cst.Element):
            parent = file.parent(parent)
        if isinstance(parent, cst.Tuple | cst.List | cst.Set) or (
            isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.BitOr)
        ):
            whole, parent = parent, file.parent(parent)
        else:
            return whole, parent


def is_tested(whole: cst.BaseExpression, parent: cst.CSTNode | None, file: File) -> bool:
    call = file.parent(parent) if isinstance(parent, cst.Arg) else None
    return isinstance(call, cst.Call) and calls_plainly(call, TESTS, 2) and call.args[1].value is whole


def is_alias(whole: cst.BaseExpression, parent: cst.CSTNode | None, file: File) -> bool:
    """Whether ``whole`` gets a name that is only used to test with, to annotate, or to wrap where it is followed."""
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        target: cst.BaseExpression = parent.targets[0].target
    elif isinstance(parent, cst.AnnAssign):
        target = parent.target
    else:
        return False
    if not isinstance(target, cst.Name):
        return False
    followed = target.value in file.aliases
    exported = file.project.imports_from(file.path, target.value)
    if exported and not followed:
        return False
    uses = file.uses(target.value)
    return bool(uses or exported) and all(_is_understood(use, followed, file) for use in uses)


def _is_understood(use: cst.Name, followed: bool, file: File) -> bool:
    """Whether a name of the class is used as other rules know it: as a type, or (where they follow it) to wrap."""
    called = followed and call_of(use, file) is not None
    return called or is_tested(*whole_of(use, file), file) or in_annotation(use, file)


def in_annotation(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` stands for a type: in an annotation, a type argument of typing, or the type of a cast."""
    for ancestor, inside in branches(node, file):
        if isinstance(ancestor, cst.Subscript):
            generic = file.code(ancestor.value).rpartition(".")[2]
            if generic in ("Literal", "Annotated"):
                return False
            if (file.resolved(ancestor.value) or "").startswith("typing."):
                return True
        elif isinstance(ancestor, cst.Annotation):
            return True
        elif isinstance(ancestor, cst.Call):
            called = file.resolved(ancestor.func)
            return called in ("typing.cast", "typing.TypeVar") and inside in (ancestor.args[0], *ancestor.args[-1:])
        elif isinstance(ancestor, cst.BaseStatement | cst.BaseSmallStatement | cst.Lambda):
            return False
    return False


def other_tests(call: cst.Call, subject: str, file: File) -> Iterator[cst.Call]:
    """The other tests of the same object, in the same condition or in another arm of the same ``if``."""
    tests: list[cst.CSTNode] = [call]
    for ancestor in file.ancestors(call):
        if isinstance(ancestor, cst.BooleanOperation | cst.UnaryOperation):
            tests[0] = ancestor
        elif isinstance(ancestor, cst.If) and ancestor.test is tests[0]:
            tests += _arms(ancestor, file)
            break
        else:
            break
    for test in tests:
        for other in file.inside(test, cst.Call):
            if other is not call and calls_plainly(other, TESTS, 2) and file.code(other.args[0].value) == subject:
                yield other


def next_tests(call: cst.Call, subject: str, file: File) -> Iterator[cst.Call]:
    """The tests of the same object by ``if``s beside that of ``call``, as functions have them that return early."""
    branch = file.parent(call)
    if not isinstance(branch, cst.If) or branch.test is not call:
        return
    for statement in file.block(branch):
        test = statement.test if isinstance(statement, cst.If) and statement is not branch else None
        if isinstance(test, cst.Call) and calls_plainly(test, TESTS, 2) and file.code(test.args[0].value) == subject:
            yield test


def _arms(arm: cst.If, file: File) -> Iterator[cst.BaseExpression]:
    first = arm
    while isinstance(outer := file.parent(first), cst.If) and outer.orelse is first:
        first = outer
    current: cst.If | cst.Else | None = first
    while isinstance(current, cst.If):
        if current is not arm:
            yield current.test
        current = current.orelse
