"""Tests in front of an expression that say what it is: ``isinstance``, ``type`` and ``hasattr`` around a use of it."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.ancestors import branches, tests_around
from fsdp_rules.file.class_tests import NEGATIVE, compared_class, compared_object, name_test
from fsdp_rules.file.expressions import asked, calls_plainly, elements, last_name
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.file.tree import leaves
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.project.askers import asks_alone
from fsdp_rules.project.project import INNER

#: FSDP is data parallelism, too: of names with that alone only the class DataParallel's own says something.
OTHER_WRAPPER = re.compile(
    r"(?<!not )\b(\w*(ddp|distributed_?data_?parallel|deepspeed)\w*|(?-i:DataParallel))\b", re.IGNORECASE
)
#: FSDP by any of its names: its class's own is that of another wrapper otherwise.
SHARDED = re.compile(r"fsdp|shard", re.IGNORECASE)
DDP_MODE = re.compile(r"^(torch|native|pytorch)?[-_ ]?(ddp|distributed[-_ ]?data[-_ ]?parallel)$", re.IGNORECASE)
DDP = re.compile(r"(?<!not )\b(is_|use_)?ddp\b", re.IGNORECASE)


#: What people call the switch for FSDP, or the function that asks whether a model is of its class.
SWITCH = re.compile(r"^(is_|use_|using_|enable_|with_)?fsdp(_enabled|_used)?$", re.IGNORECASE)
#: What every model is, wrapped or not.
BASES = frozenset({"torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module", "builtins.object"})


class Guard(enum.Enum):
    """What the tests around a use of an expression make it: an FSDP1 model, that or another wrapper, or neither."""

    NONE = "none"
    FSDP1 = "fsdp1"
    MIXED = "mixed"
    OTHER = "other"


def fsdp1_guard(node: cst.CSTNode, subject: str, file: File) -> Guard:
    """``FSDP1`` or ``MIXED`` where the conditions around ``node`` say so of ``subject``, else ``NONE``.

    The annotation of a parameter that keeps its value says so, too.
    """
    if _is_annotated(node, subject, file):
        return Guard.FSDP1
    found = guard_of(node, subject, file) if subject in _called_fsdp1(file.module, file) else Guard.NONE
    return Guard.NONE if found is Guard.OTHER else found


def _is_annotated(node: cst.CSTNode, subject: str, file: File) -> bool:
    function = file.function(node)
    bound = file.bindings.found.get((file.scope(node), subject), ())
    if not isinstance(function, cst.FunctionDef) or not all(isinstance(one.statement, cst.Param) for one in bound):
        return False
    return any(
        given.name.value == subject and given.annotation is not None and file.fsdp1(given.annotation.annotation) == FSDP
        for given in (*function.params.posonly_params, *function.params.params, *function.params.kwonly_params)
    )


@once
def _called_fsdp1(module: cst.Module, file: File) -> frozenset[str]:
    """What some test in ``module`` calls an FSDP1 model."""
    calls = (call for call in file.inside(module, cst.Call) if _asks(call, file))
    tests: list[tuple[cst.BaseExpression, cst.BaseExpression | None]] = [
        *((call, call.args[0].value) for call in calls),
        *((test, compared_object(test)) for test in file.inside(module, cst.Comparison)),
    ]
    asked_of = ((test, file.code(subject)) for test, subject in tests if subject is not None)
    return frozenset(
        subject for test, subject in asked_of if _positive(test, subject, file) in (Guard.FSDP1, Guard.MIXED)
    )


def guard_of(node: cst.CSTNode, subject: str, file: File) -> Guard:
    """What the conditions that hold where ``node`` stands say about the expression with the text ``subject``."""
    for ancestor, child in branches(node, file):
        found = _condition(child, ancestor, subject, file)
        if found is Guard.NONE and isinstance(child, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            found = _left_by_others(child, subject, file)
        if found is not Guard.NONE:
            return found
        if isinstance(ancestor, cst.FunctionDef | cst.Lambda):
            return Guard.NONE
    return Guard.NONE


def _condition(child: cst.CSTNode, ancestor: cst.CSTNode, subject: str, file: File) -> Guard:
    if isinstance(ancestor, cst.If | cst.IfExp) and child is not ancestor.test:
        return tested(ancestor.test, subject, file, truth=child is ancestor.body)
    if isinstance(ancestor, cst.While) and child is ancestor.body:
        return tested(ancestor.test, subject, file)
    clause = getattr(ancestor, "for_in", None)
    while isinstance(clause, cst.CompFor) and child is not clause:
        for condition in clause.ifs:
            if (found := tested(condition.test, subject, file)) is not Guard.NONE:
                return found
        clause = clause.inner_for_in
    if isinstance(ancestor, cst.BooleanOperation) and child is ancestor.right:
        return tested(ancestor.left, subject, file, truth=isinstance(ancestor.operator, cst.And))
    return Guard.NONE


def _left_by_others(statement: cst.CSTNode, subject: str, file: File) -> Guard:
    """What an ``if`` that leaves the block, or an ``assert``, above ``statement`` makes of the expression."""
    found = Guard.NONE
    for above in file.block(statement):
        if above is statement:
            break
        if isinstance(above, cst.Assign) and any(file.code(target.target) == subject for target in above.targets):
            found = Guard.NONE
        elif isinstance(above, cst.Assert):
            said = tested(above.test, subject, file)
            found = said if said in (Guard.FSDP1, Guard.MIXED) else found
        elif isinstance(above, cst.If) and above.orelse is None and leaves(above.body):
            said = tested(above.test, subject, file, truth=False)
            found = said if said in (Guard.FSDP1, Guard.MIXED) else found
    return found


def tested(test: cst.BaseExpression, subject: str, file: File, truth: bool = True) -> Guard:
    """What it says about the expression with the text ``subject`` that ``test`` is true (or false)."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return tested(test.expression, subject, file, not truth)
    if isinstance(test, cst.BooleanOperation):
        left, right = (tested(side, subject, file, truth) for side in (test.left, test.right))
        if isinstance(test.operator, cst.And) is truth:
            return left if left is not Guard.NONE else right
        # Either side may be the one that holds.
        return left if left is right else Guard.MIXED if {left, right} & {Guard.FSDP1, Guard.MIXED} else Guard.NONE
    if isinstance(test, cst.Comparison) and isinstance(test.comparisons[0].operator, NEGATIVE):
        truth = not truth
    found = _positive(test, subject, file)
    if truth:
        return found
    return Guard.OTHER if found in (Guard.FSDP1, Guard.MIXED) else Guard.NONE


def _asks(call: cst.Call, file: File) -> bool:
    return calls_plainly(call, ("isinstance",), 2) or _by_name(call, file) is not None


def _by_name(call: cst.Call, file: File) -> Guard | None:
    """What it says that ``call`` is true, of a function of the project that only asks for the class; else None."""
    if len(call.args) != 1 or call.args[0].star:
        return None
    alone = asks_alone(file.resolved(call.func) or last_name(call.func), file.project.askers)
    return None if alone is None else Guard.FSDP1 if alone else Guard.MIXED


def _positive(test: cst.BaseExpression, subject: str, file: File) -> Guard:
    named = _by_name(test, file) if isinstance(test, cst.Call) else None
    if named is not None and isinstance(test, cst.Call):
        return named if file.code(test.args[0].value) == subject else Guard.NONE
    if isinstance(test, cst.Call) and isinstance(test.func, cst.Name) and len(test.args) == 2:
        if file.code(test.args[0].value) != subject:
            return Guard.NONE
        if test.func.value == "hasattr":
            return Guard.OTHER
        if test.func.value == "isinstance":
            return _classes(test.args[1].value, file)
    if isinstance(test, cst.Comparison) and (by_class := compared_class(test)) is not None:
        return _classes(by_class[1], file) if file.code(by_class[0]) == subject else Guard.NONE
    if isinstance(test, cst.Comparison) and (by_name := name_test(test)) is not None:
        found = Guard.MIXED if by_name.others else Guard.FSDP1
        return found if file.code(by_name.subject) == subject else Guard.NONE
    return Guard.NONE


def _classes(node: cst.BaseExpression, file: File) -> Guard:
    node = file.value(node)
    classes = elements(node) or [node]
    wrapped = [file.fsdp1(entry) == FSDP for entry in classes]
    if all(wrapped):
        return Guard.FSDP1
    return Guard.MIXED if any(wrapped) else Guard.OTHER


def is_under_hasattr(node: cst.CSTNode, subject: str, name: str, file: File) -> bool:
    """Whether ``node`` is only reached where ``hasattr`` has found a ``name`` in the expression of text ``subject``."""
    tests = (part for test in _true_around(node, file) for part in _conjuncts(test))
    return any(_has(part, subject, name, file) for part in tests)


def _has(test: cst.BaseExpression, subject: str, name: str, file: File) -> bool:
    found = asked(test)
    if found is None or found.function != "hasattr":
        return False
    return found.name == name and file.code(found.subject) == subject


def is_under_another_wrapper(node: cst.CSTNode, file: File) -> bool:
    """Whether a test around ``node`` is true for DistributedDataParallel alone, by what it is called."""
    texts = map(file.code, _true_around(node, file))
    return any(OTHER_WRAPPER.search(test) and not SHARDED.search(test) for test in texts)


def is_under_ddp(node: cst.CSTNode, file: File) -> bool:
    """Whether a test around ``node`` says ddp, and nothing of sharding; ``data_parallel`` may be either."""
    texts = map(file.code, _true_around(node, file))
    return any(DDP.search(test) and "!=" not in test and "sdp" not in test.lower() for test in texts)


def is_under_fsdp(node: cst.CSTNode, file: File) -> bool:
    """Whether a test around ``node`` is true for FSDP alone, by what it is called."""
    return any(
        SHARDED.search(text) and not OTHER_WRAPPER.search(text) and not re.search(r"!=|\bnot\b|\bor\b", text)
        for test in _true_around(node, file)
        for text in map(file.code, _conjuncts(test))
    )


def _conjuncts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield from _conjuncts(test.left)
        yield from _conjuncts(test.right)
    else:
        yield test


def is_in_ddp_mode(node: cst.CSTNode, file: File) -> bool:
    """Whether a test around ``node`` compares something with the text "ddp"; a flag of that name may mean any run."""
    return any(_is_ddp_mode(test) for test in _true_around(node, file))


def _is_ddp_mode(test: cst.BaseExpression) -> bool:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return _is_ddp_mode(test.left) or _is_ddp_mode(test.right)
    if not isinstance(test, cst.Comparison) or len(test.comparisons) > 1:
        return False
    (target,) = test.comparisons
    if isinstance(target.operator, cst.Equal):
        texts: list[cst.BaseExpression] = [target.comparator]
    else:
        texts = elements(target.comparator) or [] if isinstance(target.operator, cst.In) else []
    values = [one.evaluated_value for one in texts if isinstance(one, cst.SimpleString)]
    return bool(values) and len(values) == len(texts) and all(DDP_MODE.search(str(one)) for one in values)


def _true_around(node: cst.CSTNode, file: File) -> list[cst.BaseExpression]:
    return [test for test, truth in _chosen_around(node, file) if truth]


def _chosen_around(node: cst.CSTNode, file: File) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """The tests around ``node``, but for those of loops, which are asked again of what the loop gives their names."""
    for test, truth in tests_around(node, file):
        if not isinstance(file.parent(test), cst.While):
            yield test, truth


def is_ruled_out(node: cst.CSTNode, text: str, file: File) -> bool:
    """Whether a test around ``node`` says that the dotted name ``text`` is no FSDP1 model there, or FSDP is off."""
    texts = {text}
    while text.endswith(INNER):
        text = text.rpartition(".")[0]
        texts.add(text)
    for test, truth in _chosen_around(node, file):
        says = _says(test, texts, file)
        if says is not None and truth:
            return not says
        if says:
            return True
    return False


def _says(test: cst.BaseExpression, texts: set[str], file: File) -> bool | None:
    """Whether ``test`` says that one of ``texts`` is of FSDP's class, or that FSDP is switched on.

    False for another class and for FSDP switched off, None for another test.
    """
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        found = _says(test.expression, texts, file)
        return None if found is None else not found
    if SWITCH.search((dotted(test.func if isinstance(test, cst.Call) else test) or "").rpartition(".")[2]):
        return True
    if not isinstance(test, cst.Call) or dotted(test.func) != "isinstance" or len(test.args) != 2:
        return None
    if dotted(test.args[0].value) not in texts:
        return None
    names = test.args[1].value
    classes = [entry.value for entry in names.elements] if isinstance(names, cst.Tuple) else [names]
    if any(file.resolved(entry) in BASES for entry in classes):
        return None
    return any(file.fsdp1(entry) == FSDP or (dotted(entry) or "").endswith("FSDPModule") for entry in classes)
