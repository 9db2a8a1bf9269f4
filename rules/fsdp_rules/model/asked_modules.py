"""Does it matter that a sharded model has no ``module`` any more, where code asks for one?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import Asked, asked, calls_plainly, last_name
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.file.tree import statements_of

#: What leaves a block: the statements behind it are the other arm of a test.
LEAVING = (cst.Return, cst.Raise, cst.Continue, cst.Break)


@once
def changes(call: cst.Call, file: File) -> bool:
    """Whether ``hasattr(model, "module")`` or ``getattr(model, "module", default)`` leads elsewhere without a wrapper.

    FSDP1's wrapper had the attribute, the model itself has none. It is the same where both arms of the test do the
    same with what is inside, and in what takes wrappers off one by one, which ends there.
    """
    question = asked(call)
    if question is None or question.name != "module" or _counts_it_in(call, question, file):
        return False
    if _takes_off(call, question, file):
        return False
    if question.function == "getattr":
        return not _is_or_itself(call, question, file)
    inner = f"{file.code(question.subject)}.module"
    branch = next((one for one in file.ancestors(call) if isinstance(one, cst.If | cst.IfExp | cst.Lambda)), None)
    if not isinstance(branch, cst.If | cst.IfExp) or call not in file.inside(branch.test, cst.Call):
        return True
    return not _same_arms(branch, inner, file.code(question.subject), file)


def asks_around(node: cst.CSTNode, subject: str, file: File) -> bool:
    """Whether a test around ``node`` asks ``subject`` for its module, and the answer changes without a wrapper."""
    tests = (one.test for one in file.ancestors(node) if isinstance(one, cst.If | cst.IfExp))
    conjunctions = (one.left for one in file.ancestors(node) if isinstance(one, cst.BooleanOperation))
    return any(
        (question := asked(call)) is not None and file.code(question.subject) == subject and changes(call, file)
        for test in (*tests, *conjunctions)
        for call in file.inside(test, cst.Call)
    )


def _counts_it_in(call: cst.Call, question: Asked, file: File) -> bool:
    """Whether the question, or one that it stands behind, already asks for the class of the model."""
    subject = file.code(question.subject)
    ways = [argument.value for argument in call.args[2:]]
    for around in file.ancestors(call):
        if not isinstance(around, cst.BooleanOperation) or not isinstance(around.operator, cst.Or):
            break
        ways.append(around.left)
    asking = (inner for way in ways for inner in file.inside(way, cst.Call) if calls_plainly(inner, ("isinstance",), 2))
    return any(file.code(one.args[0].value) == subject and "FSDP" in file.code(one.args[1]) for one in asking)


def _is_or_itself(call: cst.Call, question: Asked, file: File) -> bool:
    """Whether the model itself stands in for the module: ``getattr(m, "module", m)``, ``getattr(...) or m``."""
    subject = file.code(question.subject)
    if question.has_default and file.code(call.args[2].value) == subject:
        return True
    parent = file.parent(call)
    return isinstance(parent, cst.BooleanOperation) and parent.left is call and file.code(parent.right) == subject


def _takes_off(call: cst.Call, question: Asked, file: File) -> bool:
    """Whether ``call`` stands in a loop that gives the model another value, or in a function that calls itself."""
    subject = file.code(question.subject)
    for around in file.ancestors(call):
        if isinstance(around, cst.While | cst.For) and any(subject in names for _, names in bound_in(around, file)):
            return True
        if isinstance(around, cst.FunctionDef):
            name = around.name.value
            return any(last_name(inner.func) == name for inner in file.inside(around.body, cst.Call))
    return False


def bound_in(loop: cst.While | cst.For, file: File) -> Iterator[tuple[cst.BaseExpression, set[str]]]:
    """The values that ``loop`` gives to names, with these."""
    for entry in file.inside(loop.body, cst.Assign):
        yield entry.value, {file.code(target.target) for target in entry.targets}
    for named in file.inside(loop, cst.NamedExpr):
        yield named.value, {file.code(named.target)}


def _same_arms(branch: cst.If | cst.IfExp, inner: str, subject: str, file: File) -> bool:
    """Whether both arms of ``branch`` do the same once ``inner`` is ``subject``."""
    module = re.compile(rf"(?<![\w.]){re.escape(inner)}\b")

    def plain(nodes: Iterable[cst.CSTNode]) -> list[str]:
        return [module.sub(lambda _: subject, file.code(node)) for node in nodes]

    if isinstance(branch, cst.IfExp):
        return plain([branch.body]) == plain([branch.orelse])
    body = statements_of(branch.body.body)
    if branch.orelse is not None:
        return isinstance(branch.orelse, cst.Else) and plain(body) == plain(statements_of(branch.orelse.body.body))
    around = file.block(branch)
    if branch not in around:
        return False
    place = around.index(branch)
    if isinstance(body[-1], LEAVING):
        return plain(body) == plain(around[place + 1 :][: len(body)])
    above = plain(around[:place])[-1:]
    return plain(body) == above or all(_is_itself(one, plain) for one in body)


def _is_itself(statement: cst.CSTNode, plain: Callable[[Iterable[cst.CSTNode]], list[str]]) -> bool:
    """Whether ``statement`` gives a name what it has: ``model = model.module``."""
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    return plain([statement.targets[0].target]) == plain([statement.value])
