"""The functions in which a call may be given the meta device, by whatever name."""

from __future__ import annotations

from fsdp_rules.ir.operations import Call
from fsdp_rules.project.value_facts import Function
from fsdp_rules.values.interpreter import Interpreter


def meta_calls(machine: Interpreter) -> frozenset[Function]:
    """The functions, by file and name, that call something with a value which may be ``"meta"``."""
    device, of = machine.objects.constant("meta"), machine.store.of
    found = set[Function]()
    for frame in machine.frames:
        calls = frame.body.every(Call)
        given = (value for one in calls for value in (*one.args, *(value for _, value in one.keywords)))
        if any(device in of(frame.base + value) for value in given):
            found.add((frame.body.path, frame.scope))
    return frozenset(found)
