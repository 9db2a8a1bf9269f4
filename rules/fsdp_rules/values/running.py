"""Carries out the operations of a body: most become edges and watchers of cells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fsdp_rules.ir import operations as ops
from fsdp_rules.values.abstract import LASTING, Kind, Obj
from fsdp_rules.values.frames import Class, Definition, Frame
from fsdp_rules.values.library import is_known, table
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.object_classes import is_optimizer, may_be


def run_body(machine: Machine, frame: Frame) -> None:
    """Carry out the operations of ``frame``: most become edges and watchers."""
    for operation in frame.body.operations:
        _RUN[type(operation)](machine, frame, operation)


def _copy(machine: Machine, frame: Frame, one: ops.Copy) -> None:
    machine.store.edge(frame.base + one.of, frame.base + one.to)


def _constant(machine: Machine, frame: Frame, one: ops.Constant) -> None:
    machine.store.put(frame.base + one.to, machine.objects.constant(one.value))


def _free(machine: Machine, frame: Frame, one: ops.Free) -> None:
    machine.scopes.read(frame, one.name, frame.base + one.to)


def _bind(machine: Machine, frame: Frame, one: ops.Bind) -> None:
    machine.store.edge(frame.base + one.of, machine.scopes.bound(frame, one.name, one.scope))


def _get_attribute(machine: Machine, frame: Frame, one: ops.GetAttribute) -> None:
    to, path = frame.base + one.to, frame.body.path

    def load(owner: Obj) -> None:
        machine.attributes.load(owner, one.name, to)
        if owner.kind is Kind.OPEN:
            # What is written to the object itself is the better evidence.
            held = machine.store.of(machine.attributes.field(owner, one.name)) if owner.is_itself else ()
            if not any(given.kind in LASTING for given in held):
                machine.by_name.read_of(owner, path, one.name, to)
        elif owner.kind is Kind.INSTANCE and owner.data[1] is None:
            machine.by_name.read_own(path, one.name, to)

    machine.store.watch(frame.base + one.of, load)


def _set_attribute(machine: Machine, frame: Frame, one: ops.SetAttribute) -> None:
    value, path = frame.base + one.value, frame.body.path

    def save(owner: Obj) -> None:
        machine.attributes.save(owner, one.name, value)
        if owner.kind in (Kind.INSTANCE, Kind.OPEN):
            machine.by_name.write(path, one.name, value)
        if owner.kind is Kind.OPEN:
            machine.by_name.write_unknown(path, one.name, value)

    machine.store.watch(frame.base + one.of, save)


def _get_item(machine: Machine, frame: Frame, one: ops.GetItem) -> None:
    machine.items.read(frame.base + one.of, None if one.key is None else frame.base + one.key, frame.base + one.to)


def _set_item(machine: Machine, frame: Frame, one: ops.SetItem) -> None:
    machine.items.write(frame.base + one.of, None if one.key is None else frame.base + one.key, frame.base + one.value)


def _element(machine: Machine, frame: Frame, one: ops.Element) -> None:
    machine.items.elements(frame.base + one.of, frame.base + one.to)


def _entered(machine: Machine, frame: Frame, one: ops.Entered) -> None:
    machine.items.entered(frame.base + one.of, frame.base + one.to)


def _display(machine: Machine, frame: Frame, one: ops.Display) -> None:
    made = machine.objects.get(Kind.CONTAINER, (frame, one.to))
    if one.is_dictionary:
        machine.items.dictionaries.add(made)
    machine.store.put(frame.base + one.to, made)


def _unpacked(machine: Machine, frame: Frame, one: ops.Unpacked) -> None:
    into = machine.objects.get(Kind.CONTAINER, (frame, one.into))
    machine.store.watch(frame.base + one.of, lambda given: machine.items.unpack(given, into))


def _call(machine: Machine, frame: Frame, one: ops.Call) -> None:
    machine.calls.call_in(frame, one)


def _rebound(machine: Machine, frame: Frame, one: ops.Rebound) -> None:
    of, to = frame.base + one.of, frame.base + one.to

    def hand_on(given: Obj) -> None:
        if given.kind is Kind.MODEL:
            machine.store.put(to, given)
            machine.store.put(to, machine.objects.open)

    def call(function: Obj) -> None:
        if function.kind is Kind.OPEN or (function.kind is Kind.EXTERN and not is_known(function.data)):
            machine.store.watch(of, hand_on)

    machine.store.watch(frame.base + one.func, call)


def _gathered(machine: Machine, frame: Frame, one: ops.Gathered) -> None:
    to = frame.base + one.to
    is_own = not one.method or table("tensor").get(one.method) == "copied"

    def hand_on(given: Obj) -> None:
        # A function is given whole tensors there, and what copies one keeps it whole.
        is_whole = is_own and given.kind in (Kind.PARAMETER, Kind.GRADIENT)
        machine.store.put(to, machine.objects.open if is_whole else given)

    machine.store.watch(frame.base + one.of, hand_on)


def _narrowed(machine: Machine, frame: Frame, one: ops.Narrowed) -> None:
    of, to = frame.base + one.of, frame.base + one.to

    def admit(cls: Obj) -> None:
        if isinstance(cls.data, Definition) and cls.data.asks is not None:
            machine.store.watch(cls.data.asks, admit)
            machine.items.later(cls.data.asks, lambda: machine.store.edge(of, to))
            return
        is_known = not (one.is_one and cls.kind is Kind.EXTERN and is_optimizer(cls.data))

        def hand_on(held: Obj) -> None:
            if held.kind is Kind.OPEN and not is_known:
                machine.store.put(to, _some_optimizer(machine))
            elif may_be(held, cls, one.is_one):
                machine.store.put(to, held)

        machine.store.watch(of, hand_on)

    machine.store.watch(frame.base + one.cls, admit)
    machine.store.hand_none(of, to)
    machine.items.later(frame.base + one.cls, lambda: machine.store.edge(of, to))


def _some_optimizer(machine: Machine) -> Obj:
    """An optimizer of which no more is known."""
    made = machine.objects.get(Kind.OPTIMIZER, "some")
    for name in ("param_groups", "state"):
        machine.store.put(machine.attributes.field(made, name), machine.objects.open)
    return made


def _define(machine: Machine, frame: Frame, one: ops.Define) -> None:
    given = [(name, frame.base + value) for name, value in one.given]
    if one.body.kind != "class":
        asks = None if one.asks is None else frame.base + one.asks
        made = machine.objects.get(Kind.FUNCTION, (frame, one.body), Definition(one.body, frame, dict(given), asks))
        machine.defined.append(made)
    else:
        made = machine.objects.get(Kind.CLASS, (frame, one.body))
        if not isinstance(made.data, Class):
            inner = machine.frame(one.body, frame)
            made.data = Class(one.body, inner, [cell for name, cell in given if not name])
            inner.owner = made
            machine.by_name.define(made.data)
            run_body(machine, inner)
            for name in sorted(one.body.bound):
                machine.store.watch(machine.scopes.cell(inner, name), partial(_named, machine, made, name))
            for base in made.data.bases:
                machine.store.watch(base, partial(machine.attributes.relate, made.data))
    machine.store.put(frame.base + one.to, made)


def _named(machine: Machine, cls: Obj, name: str, held: Obj) -> None:
    """Tell an object in the body of a class its name there."""
    if held.kind is Kind.INSTANCE:
        given = machine.store.holding(cls), machine.store.holding(machine.objects.constant(name))
        machine.calls.method(held, "__set_name__", given, machine.store.cells())


def _import(machine: Machine, frame: Frame, one: ops.Import) -> None:
    machine.modules.load(frame.body.path, one.module, one.name, frame.base + one.to)


def _return(machine: Machine, frame: Frame, one: ops.Return) -> None:
    machine.store.edge(frame.base + one.of, frame.returned)


def _yield(machine: Machine, frame: Frame, one: ops.Yield) -> None:
    machine.store.edge(frame.base + one.of, frame.yielded)


_RUN: dict[type, Callable[[Machine, Frame, Any], None]] = {
    ops.Copy: _copy,
    ops.Constant: _constant,
    ops.Free: _free,
    ops.Bind: _bind,
    ops.GetAttribute: _get_attribute,
    ops.SetAttribute: _set_attribute,
    ops.GetItem: _get_item,
    ops.SetItem: _set_item,
    ops.Element: _element,
    ops.Entered: _entered,
    ops.Display: _display,
    ops.Unpacked: _unpacked,
    ops.Call: _call,
    ops.Rebound: _rebound,
    ops.Gathered: _gathered,
    ops.Narrowed: _narrowed,
    ops.Define: _define,
    ops.Import: _import,
    ops.Return: _return,
    ops.Yield: _yield,
}
