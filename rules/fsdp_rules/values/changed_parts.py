"""Parts and tensors of models that get attributes, and the attributes that classes read of their own objects."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from fsdp_rules.ir.operations import At, Bind, Body, Call, Define, Free, Gathered, GetAttribute, SetAttribute, SetItem
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.interpreter import Interpreter

_MODULES = frozenset({Kind.MODEL, Kind.PART})
#: Methods of a tensor that change it in place and give it back.
_IN_PLACE = re.compile(r"[^_]_$")


def changed_parts(machine: Interpreter) -> dict[str, dict[At, set[str]]]:
    """The classes, and their bases, of parts of models that get an attribute, by the places of what gives the part."""
    found: dict[str, dict[At, set[str]]] = defaultdict(lambda: defaultdict(set))
    for frame in machine.frames:
        owners = {one.of for one in frame.body.every(SetAttribute)}
        owners |= {one.args[0] for one in frame.body.every(Call) if _sets(one, frame, machine)}
        for at, value in frame.body.uses if owners else ():
            for one in machine.store.of(frame.base + value) if value in owners else ():
                made = one.data if one.kind is Kind.PART and isinstance(one.data, Obj) else None
                if made is not None and made.kind is Kind.INSTANCE and isinstance(made.data[0], Class):
                    family = (made.data[0], *made.data[0].above)
                    found[frame.body.path][at].update(one.body.name for one in family)
    return found


def kept_parts(machine: Interpreter) -> dict[str, set[At]]:
    """The places of what is put into models, or their parts, and is in these already, by itself or in a wrapper.

    Those of what a tensor's ``data`` is given and is that tensor, changed in place, are among them.
    """
    kept: dict[str, set[At]] = defaultdict(set)
    new: dict[str, set[At]] = defaultdict(set)
    for frame in machine.frames:
        for owner, value in _puts(frame.body):
            models = {one.since for one in machine.store.of(frame.base + owner) if one.kind in _MODULES}
            if models:
                held = machine.store.of(frame.base + value)
                is_kept = all(one.kind in _MODULES and one.since in models for one in held)
                places = kept if held and is_kept else new
                places[frame.body.path].update(frame.body.places(value))
        own = set(_own_data(frame.body))
        kept[frame.body.path].update(at for at, one in frame.body.uses if one in own)
    return {path: places - new[path] for path, places in kept.items()}


def _puts(body: Body) -> Iterator[tuple[int, int]]:
    """What each operation puts something into, and what that is."""
    owners = {one.to: one.of for one in body.every(GetAttribute)}
    for one in body.operations:
        if isinstance(one, SetAttribute | SetItem):
            yield one.of, one.value
        elif isinstance(one, Call) and one.args:
            yield owners.get(one.of, one.args[0]), one.args[-1]


def _own_data(body: Body) -> Iterator[int]:
    """What is assigned to the ``data`` of a tensor that it is itself."""
    changed = [one for one in body.every(SetAttribute) if one.name == "data"]
    made = {one.to: one for one in body.operations if isinstance(one, GetAttribute | Call)} if changed else {}
    gathered = {one.to: one.of for one in body.every(Gathered)}

    def tensor(value: int) -> tuple[int, list[str]]:
        names = []
        while (one := made.get(value := gathered.get(value, value))) is not None:
            method = made.get(one.of) if isinstance(one, Call) else one
            if not isinstance(method, GetAttribute) or (method is not one and not _IN_PLACE.search(method.name)):
                break
            names += [one.name] if isinstance(one, GetAttribute) and one.name != "data" else []
            value = method.of
        return value, names

    yield from (one.value for one in changed if tensor(one.of) == tensor(one.value))


def _sets(call: Call, frame: Frame, machine: Interpreter) -> bool:
    return bool(call.args) and any(one.data == "builtins.setattr" for one in machine.store.of(frame.base + call.of))


def own_reads(cls: Body) -> Iterator[str]:
    """The attributes that the methods of a class read of its object, and its properties that take a value."""
    asked = {one.to for one in cls.every(GetAttribute) if one.name == "setter"}
    made = {one.to for one in cls.every(Call) if one.of in asked}
    yield from (one.name for one in cls.every(Bind) if one.of in made)
    for one in cls.every(Define):
        if one.body.kind != "class" and one.body.parameters:
            yield from _reads_of(one.body, one.body.parameters[0], {0})


def _reads_of(body: Body, name: str, values: set[int]) -> Iterator[str]:
    """The attributes that ``body`` reads of what ``values`` are, and of the variable ``name`` of the scope around."""
    values = values | {one.to for one in body.every(Free) if one.name == name}
    for one in body.operations:
        if isinstance(one, GetAttribute) and one.of in values:
            yield one.name
        elif isinstance(one, Define):
            yield from _reads_of(one.body, name, set())
