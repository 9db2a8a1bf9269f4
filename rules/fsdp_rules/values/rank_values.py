"""What is formed of the number of a process: texts, paths, seeds, and what is read from such a path."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from fsdp_rules.ir.operations import At, Call, Display, Element, GetAttribute, GetItem, SetItem
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.library import table
from fsdp_rules.values.positions import text_at

#: What people call the number of a process, and of its place among others that hold parts of a model.
_RANK = re.compile(r"(^|_)rank(_id)?$|^RANK_|get_(\w+_)?rank$|^(local_)?process_index$", re.IGNORECASE)
_DEVICE = re.compile(r"(cuda|xpu|hpu|npu|mps|mlu|musa|cpu|privateuseone):")
_WORDS = re.compile(rb"rank|process_index", re.IGNORECASE)
_LAST = re.compile(r"(\w+)\W{0,2}$")
#: Keywords that say where tensors are placed.
_PLACES = frozenset({"map_location", "device", "device_id"})
#: What gives a truth value, or nothing that has to do with what it is given.
_APART = frozenset({"nothing", "compared", "plain_object"})
_MODELS = frozenset({Kind.MODEL, Kind.PART, Kind.OPTIMIZER, Kind.OTHER_WRAPPER})
#: What runs a function of the tree: what that gives is known.
_OWN = frozenset({Kind.FUNCTION, Kind.BOUND, Kind.CLASS, Kind.PARTIAL})


def rank_cells(machine: Interpreter, lines: Mapping[str, list[bytes]]) -> frozenset[int]:
    """The cells of all that may be such a number, by its name, or formed of one."""
    ranked = {path for path, text in lines.items() if any(_WORDS.search(line) for line in text)}
    joins: dict[int, list[int]] = defaultdict(list)
    pending: list[int] = []
    for frame in machine.frames:
        for source, to in _joins(frame, machine):
            joins[source].append(to)
        if frame.body.path in ranked:
            pending += [frame.base + value for at, value in frame.body.uses if _is_named(at, lines[frame.body.path])]
    found: set[int] = set()
    while pending:
        cell = pending.pop()
        if cell not in found:
            found.add(cell)
            pending += [*joins[cell], *machine.store.targets(cell)]
    return frozenset(found)


def rank_values(machine: Interpreter, cells: frozenset[int]) -> dict[str, set[At]]:
    """The places of all expressions that are in one of ``cells``."""
    found: dict[str, set[At]] = defaultdict(set)
    for frame in machine.frames:
        found[frame.body.path].update(at for at, value in frame.body.uses if frame.base + value in cells)
    return found


def _is_named(at: At, lines: list[bytes]) -> bool:
    last = _LAST.search(text_at(at, lines)) if at.line == at.end_line else None
    return last is not None and _RANK.search(last[1]) is not None


def _joins(frame: Frame, machine: Interpreter) -> Iterator[tuple[int, int]]:
    """The pairs of cells of which the second is formed of the first, beside what is the same object."""
    base, lists = frame.base, set[int]()
    for one in frame.body.operations:
        if isinstance(one, Display) and not one.is_dictionary:
            lists.add(one.to)
        elif isinstance(one, SetItem) and one.of in lists:
            yield base + one.value, base + one.of
        elif isinstance(one, GetItem | Element | GetAttribute):
            if not all(_is_own(held) for held in machine.store.of(base + one.of)):
                yield base + one.of, base + one.to
            if isinstance(one, GetItem) and one.key is not None:
                yield base + one.key, base + one.to
        elif isinstance(one, Call):
            callees = machine.store.of(base + one.of)
            if callees and all(map(_gives_nothing, callees)):
                continue
            beside = [each.data[0] for each in callees if each.kind is Kind.METHOD]
            if any(map(_names_device, beside)) or any(
                _names_device(text) for cell in one.args for text in machine.store.of(base + cell)
            ):
                continue
            is_read = any(table("functions").get(each.data) == "loaded" for each in callees)
            given = [*one.args[: 1 if is_read else None], *(cell for name, cell in one.keywords if name not in _PLACES)]
            yield from ((base + cell, base + one.to) for cell in (one.of, *given))


def _names_device(one: Obj) -> bool:
    """Whether ``one`` is how the name of a device begins, before its number: such a text is no path."""
    text = one.data.beginning if one.kind is Kind.TEXT else one.data if one.kind is Kind.CONSTANT else None
    return isinstance(text, str) and _DEVICE.match(text) is not None


def _is_own(one: Obj) -> bool:
    """Whether it is known what the attributes and elements of ``one`` are."""
    return one.kind is Kind.CONTAINER or (one.kind is Kind.INSTANCE and one.data[0] != "outer") or one.kind in _MODELS


def _gives_nothing(callee: Obj) -> bool:
    """Whether what ``callee`` gives is not formed of what it is given, or known."""
    if callee.kind is Kind.METHOD:
        return callee.data[0].kind in _MODELS
    # Not by its text: that of a function of the tree has all that its frames hold.
    effect = table("functions").get(callee.data)
    return callee.kind in _OWN or callee.data == "operator.Compare" or effect in _APART
