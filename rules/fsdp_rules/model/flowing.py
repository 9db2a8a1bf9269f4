"""What the interpretation of the tree says of an expression: evidence besides that of the names."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.places import INNER
from fsdp_rules.project.value_facts import NOTHING, Fact, Trait


def value_of(node: cst.BaseExpression, file: File) -> Fact:
    """What ``node`` may be, if it is an expression of the file as it was read."""
    if not file.layout.has(node) or file.path not in file.project.values.known:
        return NOTHING
    return file.project.values.at(file.path, file.span(node))


def other_model(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node``, or what it is the module inside of, is a model in another wrapper than FSDP1's."""
    found = value_of(node, file).other
    while isinstance(node, cst.Attribute) and f".{node.attr.value}" in INNER:
        node = node.value
        found = max(found, value_of(node, file).other)
    return found


def known_as(what: Trait, node: cst.BaseExpression, file: File) -> bool:
    """Whether it is known that ``node`` is ``what``."""
    found = file.project.values.traits.get(what, {}).get(file.path)
    return found is not None and file.layout.has(node) and file.span(node) in found


def runs_in(what: Trait, node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is in a function that is known as ``what``."""
    found = file.project.values.traits.get(what, {}).get(file.path)
    function = file.function(node) if found else None
    return function is not None and any(file.span(function.name)[0] == line for line, *_ in found or ())


def is_no_optimizer(node: cst.BaseExpression, file: File) -> bool:
    """Whether all that reaches ``node`` is known, and no optimizer."""
    return known_as("other", node, file) and value_of(node, file).optimizer is Certainty.NO


def is_raw(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is what some wrap is given, and is not wrapped yet."""
    return value_of(node, file).given is Certainty.YES


def built_early(node: cst.BaseExpression, file: File) -> str | None:
    """Of a call that builds an optimizer of a module which something wraps later that module, as it is written."""
    found = file.project.values.built_early.get(file.path)
    return found.get(file.span(node)) if found is not None and file.layout.has(node) else None


def is_ungraphed(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` may be a model that runs without a graph each time, so that no backward reshards it."""
    return not file.project.values.ungraphed.isdisjoint(value_of(node, file).origins)


def outlasts_backwards(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` may be a model that runs without a graph beside others, whose backward does not reshard it."""
    return not file.project.values.lingering.isdisjoint(value_of(node, file).origins)


def is_doubled(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` may be a model that has one module under several names."""
    return not file.project.values.doubled.isdisjoint(value_of(node, file).origins)
