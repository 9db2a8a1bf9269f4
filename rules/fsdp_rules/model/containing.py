"""What a part of a model is taken out of: by its name, by its place, by a loop, or by another name for it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import called_on, named_member
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.wrapping import PASSING, binds, loops_around

#: Methods of modules that give modules, and of ModuleDict.
GIVES_MODULES = frozenset({"children", "modules", "named_children", "named_modules"})
GIVES_VALUES = frozenset({"items", "values"})


def containing(node: cst.BaseExpression, file: File) -> Iterator[cst.BaseExpression]:
    """Everything that ``node`` is a part of, from the inside out: of ``model.blocks[0]`` the blocks and the model.

    ``getattr``, ``get_submodule``, loops over modules and other names for a part are followed.
    """
    seen: set[cst.BaseExpression] = {node}
    outer = _outer(node, file)
    while outer is not None and outer not in seen:
        yield outer
        seen.add(outer)
        outer = _outer(outer, file)


@once
def _outer(node: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    if (member := named_member(node)) is not None:
        return member[0]
    if isinstance(node, cst.Attribute | cst.Subscript | cst.NamedExpr):
        return node.value
    if isinstance(node, cst.Call):
        return called_on(node, "get_submodule")
    if not isinstance(node, cst.Name):
        return None
    for loop in loops_around(node, file):
        if binds(loop.target, node.value):
            return _run_over(loop.iter, loop.target, node.value, file)
    # What the name stands for is the same object, whose own whereabouts the project follows.
    made = _given_to(node, file)
    return None if isinstance(made, cst.Name) else _outer(made, file)


def _given_to(name: cst.Name, file: File) -> cst.BaseExpression:
    """What the only assignment of ``name`` gives it, that of a tuple or in an expression included; ``name`` if none."""
    found = file.bindings.found.get((file.scope(name), name.value), [])
    statement = found[0].statement if len(found) == 1 and found[0].value is None else None
    if isinstance(statement, cst.NamedExpr):
        return statement.value
    if isinstance(statement, cst.Assign) and isinstance(statement.value, cst.Tuple):
        for target in statement.targets:
            if isinstance(target.target, cst.Tuple) and len(target.target.elements) == len(statement.value.elements):
                for one, given in zip(target.target.elements, statement.value.elements, strict=True):
                    if isinstance(one.value, cst.Name) and one.value.value == name.value:
                        return given.value
    return file.objects.origin(name)


def _run_over(iterated: cst.BaseExpression, target: cst.CSTNode, name: str, file: File) -> cst.BaseExpression | None:
    """What has the modules that a loop over ``iterated`` gives one by one to the ``name`` in ``target``."""
    iterated = file.objects.origin(iterated)
    if not isinstance(iterated, cst.Call):
        return _of_elements(iterated, file)
    func = iterated.func
    if isinstance(func, cst.Attribute):
        if func.attr.value in GIVES_MODULES:
            return func.value
        return _of_elements(func.value, file) if func.attr.value in GIVES_VALUES and not iterated.args else None
    if not isinstance(func, cst.Name) or func.value not in PASSING or not iterated.args:
        return None
    parts = [one.value for one in target.elements] if isinstance(target, cst.Tuple) else []
    if func.value == "enumerate" and len(parts) == 2:
        return _run_over(iterated.args[0].value, parts[1], name, file)
    if func.value == "zip" and len(parts) == len(iterated.args):
        found = [at for at, part in enumerate(parts) if binds(part, name)]
        return _run_over(iterated.args[found[0]].value, parts[found[0]], name, file) if found else None
    return _run_over(iterated.args[-1].value, target, name, file)


def _of_elements(several: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """What ``several``, a list of modules, is a part of: where it is a model's own, its elements are parts of that.

    The list itself is left out: one of sharded models has models as its elements, and is none.
    """
    while isinstance(several, cst.Subscript) and named_member(several) is None:
        several = several.value
    return _outer(several, file)
