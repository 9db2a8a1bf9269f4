"""The files to which models, and what leads to them, come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.values.abstract import Kind, Obj, Site
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.gives import Gives
from fsdp_rules.values.interpreter import Interpreter

#: The fields of a fact by what an object is.
FIELDS = {
    Kind.MODEL: "model",
    Kind.PART: "part",
    Kind.PARAMETER: "parameter",
    Kind.GRADIENT: "gradient",
    Kind.NUMBER: "number",
}
_HELD = frozenset({Kind.MODEL, Kind.PARAMETER})


def touched(machine: Interpreter) -> frozenset[str]:
    """The files with something that may be something of a model."""
    gives = Gives(machine)
    return frozenset(
        path
        for path, since in _files_with(lambda one: one.kind in FIELDS or gives.is_some(_HELD, one), machine).items()
        if None in since or any(machine.may_share(path, one.path) for one in since if one)
    )


def reached(machine: Interpreter) -> frozenset[str]:
    """These, and those to which what leads to models comes, or an object that may be a module beside one."""
    found = touched(machine)
    beside = {one for frame in machine.frames if frame.body.path in found for one in _objects(frame, machine)}
    classes = frozenset(one.data[0].body.path for one in beside)
    return found.union(classes, _files_with(lambda one: one in beside or _leads_on(one), machine))


def reading_by_name(machine: Interpreter) -> Iterator[str]:
    """The files with a function that nothing calls which reads a model by the name of an attribute."""
    bodies = {one.data.body: one for one in machine.defined if not machine.calls.is_called(one)}
    yield from (body.path for body in bodies if machine.by_name.reads_model(body.path, body))


def _files_with(is_asked: Callable[[Obj], bool], machine: Interpreter) -> dict[str, set[Site | None]]:
    """The files with an expression, a parameter or a name that may be what ``is_asked`` is true of, and its wraps."""
    asked = {
        cell: since for cell, held in machine.store.filled() if (since := {one.since for one in held if is_asked(one)})
    }
    found: dict[str, set[Site | None]] = defaultdict(set)
    for frame in machine.frames:
        for cell in _cells(frame):
            found[frame.body.path].update(asked.get(cell, ()))
    return {path: since for path, since in found.items() if since}


def _cells(frame: Frame) -> Iterator[int]:
    yield from (frame.base + value for _, value in frame.body.uses)
    yield from range(frame.base, frame.base + len(frame.body.parameters))
    yield from frame.names.values()


def _objects(frame: Frame, machine: Interpreter) -> Iterator[Obj]:
    """The objects in ``frame`` of classes of the tree with bases."""
    for cell in _cells(frame):
        for one in machine.store.of(cell):
            if one.kind is Kind.INSTANCE and isinstance(one.data[0], Class) and one.data[0].bases:
                yield one


def _leads_on(one: Obj) -> bool:
    """Whether ``one`` is FSDP1's class, a model that stays in it, or one in another wrapper."""
    return one.kind is Kind.OTHER_WRAPPER or one.is_kept or (one.kind is Kind.EXTERN and canonical(one.data) == FSDP)
