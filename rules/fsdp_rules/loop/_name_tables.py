"""Names of sharded models' parameters and modules that a program looks up in tables, or compares with other names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import elements, last_name
from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.sharded import sharded, sharded_names
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.wrapping import PASSING
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

NAMED = frozenset({"named_buffers", "named_modules", "named_parameters"})
#: Methods of tables that take a key, and do not raise where it is missing.
LOOKS_UP = frozenset({"get", "pop", "setdefault"})
#: Calls that make other names of those that they are given.
RENAMES = re.compile(r"replace|strip|prefix|split|sub|clean|rename|canonical|fqn|partition", re.IGNORECASE)
FILLS = frozenset({"add", "append", "extend", "update"})
DEPTH = 4
MADE_BEFORE = "these names were made before sharding: FSDP1's had a prefix and were not found, FSDP2's are"
ASSUMED = "assumes {table} has the names of the sharded model itself: FSDP1's had a prefix, FSDP2's have none"
ADVICE = "to keep the numbers, treat these parameters as if nothing was found. To get what was meant, keep the line"


def about_table(node: cst.Comparison | cst.Call, file: File) -> Iterator[Diagnosis]:
    """The verdict about ``node``, where it looks for the name of something of a sharded model in other names."""
    pair = _looked_up(node, file)
    if pair is None or is_summoned(node, file):
        return
    key, table = pair
    held = _held(model_of_name(key, file) if isinstance(key, cst.Name) else None, file)
    if held is Certainty.NO:
        held, table = _held(_named_of(table, file, DEPTH), file), key
    if held is Certainty.NO or (table is not key and (_is_text(table) or _has_texts(table, file))):
        return
    origin = Certainty.NO if _is_text(table) else _origin(_looped(table, file), file)
    if origin is Certainty.NO and held is Certainty.YES:
        yield Diagnosis(node, Level.MANUAL, MADE_BEFORE, ADVICE)
    elif origin is not Certainty.YES:
        yield Diagnosis(node, Level.REVIEW, ASSUMED.format(table=file.code(table)), ADVICE)


def _held(model: cst.BaseExpression | None, file: File) -> Certainty:
    return Certainty.NO if model is None else sharded_names(model, file)


def _looped(table: cst.BaseExpression, file: File) -> cst.BaseExpression:
    """What a loop runs over that binds ``table`` to its elements, or the first of each two; else ``table`` itself."""
    for ancestor in file.ancestors(table) if isinstance(table, cst.Name) else ():
        clause = getattr(ancestor, "for_in", None) or (ancestor if isinstance(ancestor, cst.For) else None)
        if isinstance(clause, cst.For | cst.CompFor) and _binds_first(clause.target, file.code(table)):
            return clause.iter
    return table


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
    sides = ((left, right), (right, left))
    return next((one for one in sides if isinstance(one[0], cst.Name) and model_of_name(one[0], file)), None)


def model_of_name(name: cst.Name, file: File) -> cst.BaseExpression | None:
    """The model over whose named parameters or modules a loop runs that binds ``name`` to their names."""
    for ancestor in file.ancestors(name):
        clause = getattr(ancestor, "for_in", None) or (ancestor if isinstance(ancestor, cst.For) else None)
        while isinstance(clause, cst.For | cst.CompFor):
            if _binds_first(clause.target, name.value):
                if isinstance(clause, cst.For) and _is_renamed(name, clause, file):
                    return None
                return _named_of(clause.iter, file, DEPTH)
            clause = clause.inner_for_in if isinstance(clause, cst.CompFor) else None
        if isinstance(ancestor, cst.FunctionDef | cst.Lambda):
            return None
    return None


def _binds_first(target: cst.BaseExpression, name: str) -> bool:
    """Whether ``name`` is the first of two, as in ``for name, parameter in ...`` and in ``for i, (name, _) in ...``."""
    pair = elements(target)
    if pair is None or len(pair) != 2:
        return isinstance(target, cst.Name) and target.value == name
    return (isinstance(pair[0], cst.Name) and pair[0].value == name) or (
        isinstance(pair[1], cst.Tuple) and _binds_first(pair[1], name)
    )


def _is_renamed(name: cst.Name, loop: cst.For, file: File) -> bool:
    return any(
        dotted(target.target) == name.value for entry in file.inside(loop.body, cst.Assign) for target in entry.targets
    )


def _named_of(node: cst.BaseExpression, file: File, depth: int) -> cst.BaseExpression | None:
    """The model whose names ``node`` gives: ``model.named_parameters()``, a dictionary of it, or its keys."""
    if depth == 0:
        return None
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value in NAMED:
            return node.func.value
        return _named_of(node.func.value, file, depth - 1) if node.func.attr.value in ("items", "keys") else None
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in PASSING and node.args:
        return _named_of(node.args[0].value, file, depth - 1)
    if isinstance(node, cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp):
        key = node.key if isinstance(node, cst.DictComp) else node.elt
        is_name = isinstance(key, cst.Name) and _binds_first(node.for_in.target, key.value)
        return _named_of(node.for_in.iter, file, depth - 1) if is_name else None
    if isinstance(node, cst.Name):
        made = file.objects.origin(node)
        return None if made is node else _named_of(made, file, depth - 1)
    return None


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
    """How sure it is that the names in ``table`` are those of a sharded model, and not of one before its sharding."""
    found = [one for sources in _sources(table, file) for one in _origins(sources, file)]
    return max(found, default=Certainty.MAYBE)


def _sources(table: cst.BaseExpression, file: File) -> Iterator[list[cst.CSTNode]]:
    """``table`` itself, what it is assigned, and what is added to it, with the loops around that."""
    yield [table]
    text, scope = file.code(table), file.scope(table)

    def is_same(node: cst.BaseExpression) -> bool:
        home = file.scope(node)
        return file.code(node) == text and ("." in text or f"{scope}.".startswith(f"{home}.") or not home)

    def with_loops(node: cst.CSTNode) -> list[cst.CSTNode]:
        return [node, *(one.iter for one in file.ancestors(node) if isinstance(one, cst.For))]

    for entry in file.nodes(cst.Assign):
        for target in entry.targets:
            whole = target.target
            if is_same(whole):
                yield [entry.value]
            elif isinstance(whole, cst.Subscript) and is_same(whole.value):
                yield with_loops(entry)
    for call in file.nodes(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in FILLS and is_same(call.func.value):
            yield with_loops(call)


def _origins(sources: list[cst.CSTNode], file: File) -> Iterator[Certainty]:
    """How sure it is that each model whose names ``sources`` take is sharded there."""
    calls = [call for source in sources for call in file.inside(source, cst.Call)]
    renamed = any(RENAMES.search(last_name(call.func)) for call in calls)
    for call in calls:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in NAMED:
            held = sharded(call.func.value, file).certainty
            yield min(held, Certainty.MAYBE) if renamed else held
