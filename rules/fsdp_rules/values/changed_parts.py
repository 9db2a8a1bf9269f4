"""Parts of models that get attributes, and the attributes that classes read of their own objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fsdp_rules.ir.operations import At, Bind, Body, Call, Define, Free, GetAttribute, SetAttribute
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.interpreter import Interpreter


def changed_parts(machine: Interpreter) -> dict[str, dict[At, set[str]]]:
    """The classes, and their bases, of parts of models that get an attribute, by the places of what gives the part."""
    found: dict[str, dict[At, set[str]]] = defaultdict(lambda: defaultdict(set))
    for frame in machine.frames:
        owners = {one.of for one in frame.body.operations if isinstance(one, SetAttribute)}
        owners |= {one.args[0] for one in frame.body.operations if isinstance(one, Call) and _sets(one, frame, machine)}
        for at, value in frame.body.uses if owners else ():
            for one in machine.store.of(frame.base + value) if value in owners else ():
                made = one.data if one.kind is Kind.PART and isinstance(one.data, Obj) else None
                if made is not None and made.kind is Kind.INSTANCE and isinstance(made.data[0], Class):
                    family = (made.data[0], *made.data[0].above)
                    found[frame.body.path][at].update(one.body.name for one in family)
    return found


def _sets(call: Call, frame: Frame, machine: Interpreter) -> bool:
    return bool(call.args) and any(one.data == "builtins.setattr" for one in machine.store.of(frame.base + call.of))


def own_reads(cls: Body) -> Iterator[str]:
    """The attributes that the methods of a class read of its object, and its properties that take a value."""
    asked = {one.to for one in cls.operations if isinstance(one, GetAttribute) and one.name == "setter"}
    made = {one.to for one in cls.operations if isinstance(one, Call) and one.of in asked}
    yield from (one.name for one in cls.operations if isinstance(one, Bind) and one.of in made)
    for one in cls.operations:
        if isinstance(one, Define) and one.body.kind != "class" and one.body.parameters:
            yield from _reads_of(one.body, one.body.parameters[0], {0})


def _reads_of(body: Body, name: str, values: set[int]) -> Iterator[str]:
    """The attributes that ``body`` reads of what ``values`` are, and of the variable ``name`` of the scope around."""
    values = values | {one.to for one in body.operations if isinstance(one, Free) and one.name == name}
    for one in body.operations:
        if isinstance(one, GetAttribute) and one.of in values:
            yield one.name
        elif isinstance(one, Define):
            yield from _reads_of(one.body, name, set())
