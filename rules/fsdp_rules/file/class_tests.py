"""Tests of an object's class, however they are spelled: ``type(x) is C``, and comparisons of the class's name."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import calls_plainly, elements, is_repeatable, literal_text
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import FSDP

NEGATIVE = (cst.NotEqual, cst.IsNot, cst.NotIn)


def subject_of_class(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``x`` in ``type(x)`` and ``x.__class__``."""
    if isinstance(node, cst.Call) and calls_plainly(node, ("type",), 1):
        argument = node.args[0]
        return argument.value if argument.keyword is None and not argument.star else None
    if isinstance(node, cst.Attribute) and node.attr.value == "__class__":
        return node.value
    return None


def subject_of_name(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``x`` in ``type(x).__name__``, ``str(type(x))``, ``x._get_name()`` and the like."""
    if (module := _named_module(node)) is not None:
        return module
    if type(node) is cst.Attribute and node.attr.value in ("__name__", "__qualname__"):
        return subject_of_class(node.value)
    if type(node) is cst.Call and calls_plainly(node, ("str", "repr"), 1):
        return subject_of_class(node.args[0].value)
    return None


def is_bare_name(node: cst.BaseExpression) -> bool:
    """Whether ``node`` is the name of a class alone, as ``type(x).__name__`` and ``x._get_name()`` are."""
    return _named_module(node) is not None or (type(node) is cst.Attribute and subject_of_name(node) is not None)


def _named_module(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``x`` in ``x._get_name()``, a method of torch's modules."""
    method = node.func if type(node) is cst.Call and not node.args else None
    return method.value if type(method) is cst.Attribute and method.attr.value == "_get_name" else None


def compared_class(test: cst.Comparison) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """The object whose class ``test`` compares, and with what: ``type(x) is C``, ``x.__class__ in (C, D)``."""
    if len(test.comparisons) != 1:
        return None
    left, right = test.left, test.comparisons[0].comparator
    for side, kinds in ((left, right), (right, left)):
        if (subject := subject_of_class(side)) is not None:
            return subject, kinds
    return None


def compared_object(test: cst.Comparison) -> cst.BaseExpression | None:
    """The object whose class, or the name of whose class, ``test`` compares with FSDP1's or another."""
    by_class, by_name = compared_class(test), name_test(test)
    if by_class is not None:
        return by_class[0]
    return None if by_name is None else by_name.subject


def negation(operator: cst.BaseCompOp) -> str:
    """``not `` for an operator that asks whether the class is another one."""
    return "not " if isinstance(operator, NEGATIVE) else ""


@dataclass(frozen=True)
class NameTest:
    """A comparison of a class's name: ``subject``'s, with FSDP1's and with those that ``others`` are the text of."""

    subject: cst.BaseExpression
    operator: cst.BaseCompOp
    name: cst.BaseExpression
    others: tuple[cst.BaseExpression, ...] = ()

    @property
    def certain(self) -> bool:
        """Whether one ``isinstance`` says the same, or two tests of a subject that may be evaluated twice."""
        return not self.others or is_repeatable(self.subject)

    def text(self, module: str, code: Code) -> str:
        """The test against the class ``module``."""
        start = negation(self.operator)
        own = f"{start}isinstance({code(self.subject)}, {module})"
        if not self.others:
            return own
        word, link = ("not in", "and") if start else ("in", "or")
        names = ", ".join(code(other) for other in self.others) + ("," if len(self.others) == 1 else "")
        return f"({own} {link} {code(self.name)} {word} ({names}))"


def name_test(node: cst.Comparison) -> NameTest | None:
    """What a comparison asks about FSDP1's class by its name, None for any other comparison."""
    if len(node.comparisons) != 1:
        return None
    left, operator, right = node.left, node.comparisons[0].operator, node.comparisons[0].comparator
    if isinstance(operator, cst.Equal | cst.NotEqual):
        for name, text in ((left, right), (right, left)):
            subject = subject_of_name(name)
            if subject is not None and _is_name(text):
                return NameTest(subject, operator, name)
    if not isinstance(operator, cst.In | cst.NotIn):
        return None
    subject = subject_of_name(right)
    if subject is not None and _is_name(left):
        return NameTest(subject, operator, right)
    subject = subject_of_name(left)
    known = elements(right)
    if subject is None or known is None or not any(map(_is_name, known)):
        return None
    return NameTest(subject, operator, left, tuple(other for other in known if not _is_name(other)))


def _is_name(node: cst.BaseExpression) -> bool:
    return literal_text(node) == FSDP
