"""Which numbers of an optimizer its update depends on, and which it only keeps, returns as metrics or logs."""

from __future__ import annotations

import builtins
import re

import libcst as cst

from fsdp_rules.file.expressions import last_name, names_in
from fsdp_rules.file.file import File, dotted

#: Methods that give metrics, by what people call them.
REPORTS = re.compile(r"metric|log|stat(s|istic)|report|record|summar", re.IGNORECASE)
IN_PLACE = re.compile(r"[^_]_$")
PUTS = frozenset({"add", "append", "extend", "setdefault", "update"})


def is_only_kept(number: cst.BaseExpression, owner: cst.ClassDef, file: File) -> bool:
    """Whether nothing that ``number``, in a method of the class ``owner``, becomes changes a tensor or a decision."""
    followed: set[tuple[cst.FunctionDef | None, str]] = set()
    places: list[cst.CSTNode] = [number]
    while places:
        place = places.pop()
        given = _given(place, file)
        if given is None:
            return False
        function = file.function(place)
        for text in given:
            whole: cst.CSTNode = owner if text.startswith("self.") else function or owner
            key = (None if text.startswith("self.") else function, text)
            if key not in followed:
                followed.add(key)
                places += [use for use in _reads(text, whole, file) if use is not place]
    return True


def _given(place: cst.CSTNode, file: File) -> list[str] | None:
    """The names that get what ``place`` gives; None where a tensor, a decision or a function of the program does."""
    inner: cst.CSTNode = place
    names: list[str] = []
    for around in file.ancestors(place):
        if isinstance(around, cst.Call) and inner is not around.func:
            if not _passes_on(around, file):
                return None
            if last_name(around.func) in PUTS and isinstance(around.func, cst.Attribute):
                names.append(dotted(around.func.value) or "")
        elif isinstance(around, cst.CompFor):
            names += [one.value for one in names_in(around.target)] if inner is around.iter else []
        elif isinstance(around, cst.For):
            return [*names, *(one.value for one in names_in(around.target))] if inner is around.iter else names
        elif isinstance(around, cst.Assign | cst.AnnAssign | cst.AugAssign):
            targets = [one.target for one in around.targets] if isinstance(around, cst.Assign) else [around.target]
            texts = [_kept_as(target) for one in targets for target in _parts(one)]
            return None if "" in texts else [*names, *texts]
        elif isinstance(around, cst.Comparison) and isinstance(around.comparisons[0].operator, cst.Is | cst.IsNot):
            return names
        elif isinstance(around, cst.If | cst.While | cst.IfExp | cst.Assert | cst.Return):
            return names if _reports(around, file) else None
        elif isinstance(around, cst.BaseStatement):
            return names
        inner = around
    return names


def _reports(node: cst.CSTNode, file: File) -> bool:
    function = file.function(node)
    return function is not None and REPORTS.search(function.name.value) is not None


def _parts(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [one.value for one in target.elements] if isinstance(target, cst.Tuple | cst.List) else [target]


def _kept_as(target: cst.BaseExpression) -> str:
    """The name of what keeps a number that is assigned to ``target``; "" where that may be a tensor of the update."""
    while isinstance(target, cst.Subscript):
        target = target.value
    text = dotted(target) or ""
    return "" if last_name(target) in ("data", "grad") or "state" in text else text


def _passes_on(call: cst.Call, file: File) -> bool:
    """Whether ``call`` only computes another number of what it is given, or puts it into a list."""
    if IN_PLACE.search(last_name(call.func)):
        return False
    known = (file.resolved(call.func) or "").startswith("torch.")
    if isinstance(call.func, cst.Name):
        return known or hasattr(builtins, call.func.value)
    return known or last_name(call.func) in PUTS or REPORTS.search(last_name(call.func)) is not None


def _reads(text: str, whole: cst.CSTNode, file: File) -> list[cst.CSTNode]:
    """Every place in ``whole`` that reads what is called ``text``: an assignment to it is none."""
    nodes: list[cst.CSTNode] = [*file.inside(whole, cst.Attribute if "." in text else cst.Name)]
    found = [one for one in nodes if dotted(one) == text]
    return [one for one in found if not isinstance(file.parent(one), cst.AssignTarget | cst.Attribute | cst.Param)]
