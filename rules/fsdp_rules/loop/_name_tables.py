"""Names of sharded models' parameters and modules that a program looks up in tables, or compares with other names."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.member_names import names_in, names_of, prefixed, prefixed_in
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

#: Methods of tables that take a key, and do not raise where it is missing.
LOOKS_UP = frozenset({"get", "pop", "setdefault"})
MADE_BEFORE = "these names were made before sharding: FSDP1's had a prefix and were not found, FSDP2's are"
ASSUMED = "assumes {table} has the names of the sharded model itself: FSDP1's had a prefix, FSDP2's have none"
ADVICE = "to keep the numbers, treat these parameters as if nothing was found. To get what was meant, keep the line"


def about_table(node: cst.Comparison | cst.Call, file: File) -> Iterator[Diagnosis]:
    """The verdict about ``node``, where it looks for the name of something of a sharded model in other names."""
    pair = _looked_up(node, file)
    if pair is None:
        return
    key, table = pair
    named = prefixed(key, file)
    if named is None:
        named, table = prefixed_in(table, file), key
    if named is None or (table is not key and (_is_text(table) or _has_texts(table, file))):
        return
    origin = Certainty.NO if _is_text(table) else _origin(table, file)
    if origin is Certainty.NO and named.held is Certainty.YES:
        yield Diagnosis(node, Level.MANUAL, MADE_BEFORE, ADVICE)
    elif origin is not Certainty.YES:
        yield Diagnosis(node, Level.REVIEW, ASSUMED.format(table=file.code(table)), ADVICE)


def _looked_up(node: cst.Comparison | cst.Call, file: File) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """What is looked up, and what it is looked up in or compared with."""
    if isinstance(node, cst.Call):
        func, given = node.func, [argument.value for argument in node.args]
        is_lookup = isinstance(func, cst.Attribute) and func.attr.value in LOOKS_UP and bool(given)
        return (given[0], func.value) if is_lookup and isinstance(func, cst.Attribute) else None
    if len(node.comparisons) != 1:
        return None
    left, right = node.left, node.comparisons[0].comparator
    if isinstance(node.comparisons[0].operator, cst.In | cst.NotIn):
        return left, right
    if not isinstance(node.comparisons[0].operator, cst.Equal | cst.NotEqual):
        return None
    return next((one for one in ((left, right), (right, left)) if names_of(one[0], file)), None)


def _is_text(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString | cst.ConcatenatedString | cst.FormattedString)


def _has_texts(table: cst.BaseExpression, file: File) -> bool:
    """Whether ``table`` is a display of texts, about which another verdict speaks."""
    made = file.objects.origin(table)
    if isinstance(made, cst.Call) and last_name(made.func) in ("set", "frozenset", "tuple", "list") and made.args:
        made = made.args[0].value
    if not isinstance(made, cst.Tuple | cst.List | cst.Set | cst.Dict) or not made.elements:
        return False
    first = made.elements[0]
    return _is_text(first.key if isinstance(first, cst.DictElement) else first.value)


def _origin(table: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that the names in ``table``, or that itself, are of a sharded model, and not from before that."""
    found = [*names_in(table, file), *names_of(table, file)]
    return max((Certainty.NO if one.is_gathered else one.held for one in found), default=Certainty.MAYBE)
