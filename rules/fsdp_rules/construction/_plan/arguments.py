"""Gathering a call's arguments, dictionaries behind ``**`` included where their content is certain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from fsdp_rules.construction._plan.local_dicts import filled, is_changed
from fsdp_rules.file.expressions import dict_entries, is_partial, names_in
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import dotted
from fsdp_rules.fsdp1.constructor import PARAMETERS
from fsdp_rules.project.value_facts import NONE, SPREAD

#: Functions whose result is the same whenever they are asked.
STEADY = frozenset(
    {"torch.cuda.current_device", "torch.cuda.is_available", "torch.cuda.is_bf16_supported", "torch.device"}
)


@dataclass
class Gathered:
    """The arguments by name; ``reasons`` say why some of them are only known at run time.

    ``assumptions`` are about what other code may add to them.
    """

    arguments: dict[str, cst.BaseExpression] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    consumed: list[tuple[cst.CSTNode, str]] = field(default_factory=list)


def gather(call: cst.Call, parameters: tuple[str, ...], file: File) -> Gathered:
    """The arguments of an FSDP1 constructor call."""
    found = Gathered()
    unread: list[str] = []
    position = 0
    for argument in call.args:
        if argument.star == "**":
            unread += _expand(argument.value, file, found)
        elif argument.star == "*":
            found.reasons.append("positional arguments are unpacked from a sequence")
        elif argument.keyword is not None:
            found.arguments[argument.keyword.value] = argument.value
        elif position < len(parameters):
            found.arguments[parameters[position]] = argument.value
            position += 1
    if unread and _adds_nothing(call, found, file):
        found.assumptions += [f"assumes no other code gives **{text} an argument" for text in unread]
    else:
        found.reasons += [f"the content of **{text} is only known at run time" for text in unread]
    return found


def _adds_nothing(call: cst.Call, found: Gathered, file: File) -> bool:
    """Whether no program of the tree gives the wrap ``call`` an argument besides those that it is written with."""
    values = file.project.values
    if not file.layout.has(call) or values.is_bounded:
        return False
    given = values.wraps.get((file.path, file.span(call).line), {})
    others = [texts for name, texts in given.items() if name in PARAMETERS and name not in found.arguments]
    return given.get(SPREAD) == frozenset({NONE}) and all(texts == {NONE} for texts in others)


def _expand(value: cst.BaseExpression, file: File, found: Gathered) -> list[str]:
    """Add the entries of ``value``, or why they are not taken; the text of ``value`` where they cannot be told."""
    text = file.code(value)
    entries = dict_entries(value)
    binding = None
    if entries is None and isinstance(value, cst.Name):
        binding = file.binding(value)
        entries = dict_entries(file.value(value))
    made: tuple[cst.CSTNode, ...] = (binding.statement,) if binding is not None else ()
    computed: Iterable[cst.BaseExpression] = (entries or {}).values()
    if entries is None and isinstance(value, cst.Name) and (dictionary := filled(value, file)) is not None:
        entries, computed, made = dictionary.entries, dictionary.computed, dictionary.statements
    elif binding is not None and is_changed(binding.statement, file.statement(value), file):
        return [text]
    if entries is None:
        return [text]
    if made and not all(is_steady(entry, file) for entry in computed):
        found.reasons.append(f"**{text} has values that are computed where it is built")
        return []
    found.arguments.update(entries)
    found.consumed += [(statement, text) for statement in made]
    return []


def is_steady(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` means the same where it is written and at each call, without work done again."""
    if isinstance(node, cst.Lambda):
        return True
    if isinstance(node, cst.Name):
        if file.binding(node) is not None:
            return True
        scope = file.scope(node)
        while scope and (scope, node.value) not in file.bindings.found:
            scope = scope.rpartition(".")[0]
        bound = file.bindings.found.get((scope, node.value), [])
        return len(bound) < 2 and not any(isinstance(entry.statement, cst.For) for entry in bound)
    if isinstance(node, cst.BaseString | cst.BaseNumber) or dotted(node) is not None:
        return True
    if isinstance(node, cst.Call):
        known = file.fsdp1(node.func) is not None or is_partial(node, file) or file.resolved(node.func) in STEADY
        return known and all(is_steady(entry.value, file) for entry in node.args)
    if isinstance(node, cst.Set | cst.List | cst.Tuple):
        return all(is_steady(entry.value, file) for entry in node.elements)
    if isinstance(node, cst.Subscript):
        return all(is_steady(name, file) for name in names_in(node))
    if isinstance(node, cst.IfExp):
        return all(is_steady(part, file) for part in (node.body, node.test, node.orelse))
    plain = isinstance(node, cst.Comparison | cst.UnaryOperation | cst.BooleanOperation)
    return plain and not file.inside(node, cst.Call) and all(is_steady(name, file) for name in names_in(node))
