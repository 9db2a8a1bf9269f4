"""What shows that a model is sharded where its state is loaded, so that a process group is there as well."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.ancestors import tests_around
from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.sharded import Why, sharded
from fsdp_rules.model.wrapping import wrapping_call

#: Words of a test for ranks, or for what shards a model over them.
SHARDS = re.compile(r"fsdp|shard|dist|rank|world|parallel", re.IGNORECASE)
#: A value that names sharding, as in ``strategy == "fsdp"``.
NAMED = re.compile(r"fsdp|shard", re.IGNORECASE)


def is_shown_sharded(model: cst.BaseExpression, call: cst.Call, file: File) -> bool:
    """Whether ``model`` is surely sharded at ``call``.

    Its function wraps it above, the ``__init__`` of its class always wraps it, or a test around says so.
    """
    if sharded(model, file).why is Why.ABOVE or _is_wrapped_by_init(model, call, file):
        return True
    return any(_says_sharded(test, truth, file) for test, truth in tests_around(call, file))


def _is_wrapped_by_init(model: cst.BaseExpression, call: cst.Call, file: File) -> bool:
    name = dotted(model) or ""
    owner = next((entry for entry in file.ancestors(call) if isinstance(entry, cst.ClassDef)), None)
    inits = [entry for entry in owner.body.body if isinstance(entry, cst.FunctionDef)] if owner is not None else []
    function = next((entry for entry in inits if entry.name.value == "__init__"), None)
    if (
        function is None
        or not name.startswith("self.")
        or file.function(call) is function
        or known_as("early", model, file)
    ):
        return False
    return any(
        any(dotted(target.target) == name for target in entry.targets)
        and wrapping_call(entry.value, file) is not None
        and not isinstance(entry.value, cst.IfExp)
        and file.statement(entry) in file.block(function.body.body[0])
        for entry in file.inside(function, cst.Assign)
    )


def _says_sharded(test: cst.BaseExpression, truth: bool, file: File) -> bool:
    """Whether it shows a sharded model, or ranks, that ``test`` is true (or false)."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _says_sharded(test.expression, not truth, file)
    if isinstance(test, cst.BooleanOperation):
        parts = [_says_sharded(part, truth, file) for part in (test.left, test.right)]
        return any(parts) if isinstance(test.operator, cst.And) is truth else all(parts)
    if isinstance(test, cst.Comparison):
        operator, value = test.comparisons[0].operator, test.comparisons[0].comparator
        if isinstance(operator, cst.Equal | cst.Is | cst.In) and truth and NAMED.search(file.code(value)):
            return True
        unequal = isinstance(operator, cst.NotEqual | cst.IsNot | cst.GreaterThan)
        equal = isinstance(operator, cst.Equal | cst.Is | cst.LessThanEqual)
        return (unequal if truth else equal) and _is_number_or_none(value) and bool(SHARDS.search(file.code(test.left)))
    return truth and bool(SHARDS.search(file.code(test)))


def _is_number_or_none(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Integer | cst.UnaryOperation) or dotted(value) == "None"
