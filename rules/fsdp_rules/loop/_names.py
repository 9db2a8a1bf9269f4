"""Names that a program compares as a whole, or by their start: FSDP1 put a prefix in front of them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.member_names import prefixed
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

PREFIXES = ("_fsdp_wrapped_module.", "_fpw_module.")


def about_comparison(text: cst.SimpleString, file: File) -> Iterator[Diagnosis]:
    """The verdict about ``text``, where the name of a sharded model's parameter or module is compared with it."""
    # The model itself is called "" in both.
    name = _compared(text, file) if text.raw_value else None
    named = prefixed(name, file) if name is not None else None
    if named is None:
        return
    sure = named.held is Certainty.YES
    turned = _is_negated(text, file) != is_of_prefix(text)
    before, now = ("true", "false") if turned else ("false", "true")
    yield Diagnosis(
        text,
        Level.MANUAL if sure else Level.REVIEW,
        f"{'' if sure else 'if this model is sharded, '}this was {before} for every FSDP1 name, which has a prefix, "
        f"and can now be {now}",
        "to keep the numbers, treat these names as before. To get what was meant, keep the line",
    )


def is_of_prefix(text: cst.SimpleString) -> bool:
    """Whether ``text`` is a piece of what FSDP1 put into names, and long enough to have been meant."""
    piece = text.raw_value
    return len(piece) > 3 and any(piece in prefix for prefix in PREFIXES)


def _is_negated(text: cst.SimpleString, file: File) -> bool:
    """Whether the comparison asks for names that differ from ``text``."""
    whole = next((one for one in file.ancestors(text) if isinstance(one, cst.Comparison)), None)
    return whole is not None and isinstance(whole.comparisons[0].operator, cst.NotEqual | cst.NotIn)


def _compared(text: cst.SimpleString, file: File) -> cst.BaseExpression | None:
    """The plain name that ``text`` is compared with, itself or as the first of several texts."""
    parent = file.parent(text)
    if isinstance(parent, cst.Arg):
        call = file.parent(parent)
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "startswith":
            return call.func.value
        return None
    if isinstance(parent, cst.Element | cst.DictElement):
        shown = file.parent(parent)
        if not isinstance(shown, cst.Tuple | cst.List | cst.Set | cst.Dict) or shown.elements[0] is not parent:
            return None
        parent = file.parent(shown)
        while isinstance(parent, cst.Arg | cst.Call):
            parent = file.parent(parent)
        if isinstance(parent, cst.Assign | cst.AnnAssign):
            return _looked_up(parent, file)
    elif isinstance(parent, cst.ComparisonTarget) and isinstance(parent.operator, cst.In | cst.NotIn):
        return None
    if isinstance(parent, cst.ComparisonTarget):
        whole = file.parent(parent)
        return whole.left if isinstance(whole, cst.Comparison) and len(whole.comparisons) == 1 else None
    if isinstance(parent, cst.Comparison) and len(parent.comparisons) == 1:
        target = parent.comparisons[0]
        return target.comparator if isinstance(target.operator, cst.Equal | cst.NotEqual) else None
    return None


def _looked_up(constant: cst.Assign | cst.AnnAssign, file: File) -> cst.BaseExpression | None:
    """The name of something of a sharded model that is looked for in the container that ``constant`` names."""
    target = constant.target if isinstance(constant, cst.AnnAssign) else constant.targets[0].target
    text = file.code(target)
    looked_up: list[cst.BaseExpression] = []
    for whole in file.nodes(cst.Comparison):
        found = whole.comparisons[0]
        if isinstance(found.operator, cst.In | cst.NotIn) and file.code(found.comparator) == text:
            looked_up.append(whole.left)
    for call in file.nodes(cst.Call):
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value == "get" and file.code(func.value) == text:
            looked_up += [argument.value for argument in call.args[:1]]
    return next((name for name in looked_up if prefixed(name, file) is not None), None)
