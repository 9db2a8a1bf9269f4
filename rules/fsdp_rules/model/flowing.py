"""What the interpretation of the tree says of an expression: evidence besides that of the names."""

from __future__ import annotations

from collections.abc import Mapping, Set

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.places import INNER
from fsdp_rules.project.value_facts import NOTHING, Fact, Position


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


def is_other(node: cst.BaseExpression, file: File) -> bool:
    """Whether all that reaches ``node`` is known, and no module: an optimizer, a configuration, a text."""
    return _is_in(file.project.values.others, node, file)


def is_no_optimizer(node: cst.BaseExpression, file: File) -> bool:
    """Whether all that reaches ``node`` is known, and no optimizer."""
    return is_other(node, file) and value_of(node, file).optimizer is Certainty.NO


def is_raw(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is what some wrap is given, and is not wrapped yet."""
    return value_of(node, file).given is Certainty.YES


def built_early(node: cst.BaseExpression, file: File) -> str | None:
    """Of a call that builds an optimizer of a module which something wraps later that module, as it is written."""
    found = file.project.values.built_early.get(file.path)
    return found.get(file.span(node)) if found is not None and file.layout.has(node) else None


def is_excluded(node: cst.BaseExpression, file: File) -> bool:
    """Whether the settings that are tested around ``node`` are those of runs that wrap no model which reaches it."""
    return _is_in(file.project.values.excluded, node, file)


def is_own_function(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node``, which is called, is surely a function of the tree."""
    return _is_in(file.project.values.own, node, file)


def is_kept_part(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node``, which is put into a model, is a part of it already, by itself or in a wrapper."""
    return _is_in(file.project.values.kept, node, file)


def gathers_in_function(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node``, which a ``with`` enters, calls a function of the tree that gathers full parameters in it."""
    return _is_in(file.project.values.gathering, node, file)


def runs_modules(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node``, which is called, is a method of a model of the tree that runs modules in the model."""
    return _is_in(file.project.values.entering, node, file)


def is_ungraphed(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` may be a model that runs without a graph each time, so that no backward reshards it."""
    return not file.project.values.ungraphed.isdisjoint(value_of(node, file).origins)


def is_unstepped(node: cst.BaseExpression, file: File) -> bool:
    """Whether the call of ``node`` takes the state of an optimizer that may have made no step."""
    return _is_in(file.project.values.unstepped, node, file)


def takes_no_closure(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` may be an optimizer of the tree whose step takes no closure."""
    return _is_in(file.project.values.closureless, node, file)


def is_mixed(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node``, which is called, is a method of models, and in other runs of an optimizer or an own object."""
    return _is_in(file.project.values.mixed, node, file)


def sets_state_type(node: cst.BaseExpression, file: File) -> bool:
    """Whether the call ``node``, of a function of the tree, leads to one that sets the type of states."""
    return _is_in(file.project.values.setting, node, file)


def is_joined(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` may be a model, and in other runs an object that surely is no module."""
    return _is_in(file.project.values.joined, node, file)


def is_read_again(node: cst.BaseExpression, file: File) -> bool:
    """Whether the call of ``node`` loads an optimizer's state that may be loaded or saved again after more steps."""
    return _is_in(file.project.values.counted, node, file)


def is_unseen(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node``, which is called with a sharded model, is a function that nothing of the tree names."""
    return _is_in(file.project.values.unseen, node, file)


def _is_in(places: Mapping[str, Set[Position]], node: cst.BaseExpression, file: File) -> bool:
    found = places.get(file.path)
    return found is not None and file.layout.has(node) and file.span(node) in found
