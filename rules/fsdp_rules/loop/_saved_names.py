"""Names of sharded models' parameters and modules that a program writes to a file as they are."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._name_tables import FILLS, NAMED, model_of_name
from fsdp_rules.model.flattened import flattened
from fsdp_rules.model.program_wraps import has_units, sources_of, wraps_of
from fsdp_rules.model.sharded import sharded_names
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.wrapping import PASSING, is_own_name
from fsdp_rules.project.project import INNER, Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

#: Functions that write what they are given to a file.
SAVES = frozenset({"dump", "save", "save_file", "savez", "savez_compressed"})
COMPREHENSIONS = (cst.DictComp, cst.GeneratorExp, cst.ListComp, cst.SetComp)
DEPTH = 4
PREFIXED = "FSDP1's names, which are saved here, have _fsdp_wrapped_module. before each unit, and FSDP2's have not"
FLAT = "FSDP1's names, which are saved here, are one _flat_param for each unit, and FSDP2's those of all parameters"
ADVICE = "take the new names in what reads this file, and in files that were saved before"


def about_saved(call: cst.Call, file: File) -> Iterator[Diagnosis]:
    """The verdict about ``call``, which saves names, where FSDP1's were others."""
    if last_name(call.func) not in SAVES:
        return
    for name, model in (one for argument in call.args for one in _names(argument.value, file, DEPTH)):
        held = _had_prefix(name, model, file)
        if held is not Certainty.NO:
            flat = not is_summoned(name, file) and flattened(_whole(model, file), file) is Certainty.YES
            said = FLAT if flat else PREFIXED
            if held is Certainty.YES:
                yield Diagnosis(call, Level.MANUAL, said, ADVICE)
            else:
                yield Diagnosis(call, Level.REVIEW, f"if this model is sharded: {said}", ADVICE)
            return


def _names(node: cst.BaseExpression, file: File, depth: int) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Each name that is the key, or an element, of what ``node`` has, and whose parameters or modules are called so."""
    if depth == 0:
        return
    if isinstance(node, COMPREHENSIONS):
        name, given = node.key if isinstance(node, cst.DictComp) else node.elt, node.for_in.iter
        if isinstance(given, cst.Call) and isinstance(given.func, cst.Attribute) and given.func.attr.value == "items":
            # Names that were made elsewhere are judged there.
            yield from _names(given.func.value, file, depth - 1) if isinstance(name, cst.Name) else ()
            return
        yield from _of_loop(name, file)
    elif isinstance(node, cst.Dict | cst.List | cst.Set | cst.Tuple):
        for element in node.elements:
            yield from _names(element.value, file, depth - 1)
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in PASSING:
        for argument in node.args[:1]:
            given = argument.value
            if isinstance(given, cst.Call) and isinstance(given.func, cst.Attribute) and last_name(given.func) in NAMED:
                yield given, given.func.value
            else:
                yield from _names(given, file, depth - 1)
    elif isinstance(node, cst.Name):
        yield from _of_loop(node, file)
        yield from _of_variable(node, file, depth)


def _of_loop(name: cst.BaseExpression, file: File) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    model = model_of_name(name, file) if isinstance(name, cst.Name) else None
    if model is not None:
        yield name, model


def _of_variable(node: cst.Name, file: File, depth: int) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    made = file.objects.origin(node)
    if made is not node:
        yield from _names(made, file, depth - 1)
    for entry in file.nodes(cst.Assign):
        target = entry.targets[0].target
        if not isinstance(target, cst.Subscript) or file.code(target.value) != node.value:
            continue
        key = target.slice[0].slice
        if file.scope(entry) == file.scope(node) and isinstance(key, cst.Index):
            yield from _of_loop(key.value, file)
    for call in file.nodes(cst.Call):
        func = call.func
        is_filled = isinstance(func, cst.Attribute) and func.attr.value in FILLS and file.code(func.value) == node.value
        if is_filled and file.scope(call) == file.scope(node):
            for argument in call.args:
                yield from _names(argument.value, file, depth - 1)


def _had_prefix(name: cst.BaseExpression, model: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``name`` had FSDP1's prefix.

    While full parameters are gathered the wrapper itself takes it off. The module in it has none of its own in front.
    """
    whole = _whole(model, file)
    held = sharded_names(whole, file)
    if held is Certainty.NO or is_own_name(name, file) or (whole is model and is_summoned(name, file)):
        return Certainty.NO
    return held if whole is model or has_units(wraps_of(whole, file), sources_of(file)) else Certainty.NO


def _whole(model: cst.BaseExpression, file: File) -> cst.BaseExpression:
    """The wrapped model, where ``model`` is the module in it; else ``model``."""
    made = file.objects.origin(model)
    is_inner = isinstance(made, cst.Attribute) and f".{made.attr.value}" in INNER
    return made.value if isinstance(made, cst.Attribute) and is_inner else model
