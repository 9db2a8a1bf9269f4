"""FSDP1's class where code hands it on as a value, and what is done with it in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.ir import operations as ops
from fsdp_rules.ir.operations import At, Body
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter

_ASKS = frozenset({"builtins.isinstance", "builtins.issubclass"})
#: What hands its arguments on, or keeps them for a later call.
_KEEPS = frozenset({"builtins.dict", "builtins.list", "builtins.tuple", "collections.OrderedDict", "functools.partial"})
_RUN = frozenset({Kind.FUNCTION, Kind.BOUND, Kind.CLASS, Kind.PARTIAL, Kind.INSTANCE})


def only_called(machine: Interpreter) -> dict[str, set[At]]:
    """The expressions that are FSDP1's class, of a tree that only calls those it has handed on."""
    if not machine.is_complete or machine.is_bounded:
        return {}
    values = _Values(machine)
    every = [(frame, one) for frame in machine.frames for one in frame.body.operations]
    if not any(values.calls(*each) for each in every) or not all(values.is_called(*each) for each in every):
        return {}
    found: dict[str, set[At]] = defaultdict(set)
    for frame in machine.frames:
        found[frame.body.path].update(at for at, value in frame.body.uses if values.is_class(frame, value))
    return found


class _Values:
    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._store = machine.store
        self._imported = cache(_imported)
        self._makers = cache(_makers)

    def is_class(self, frame: Frame, value: int) -> bool:
        """Whether ``value`` may be FSDP1's class."""
        return any(map(_is_fsdp1, self._store.of(frame.base + value)))

    def calls(self, frame: Frame, one: ops.Operation) -> bool:
        """Whether ``one`` calls the class by another name than that it is imported by, or a partial object of it."""
        if not isinstance(one, ops.Call):
            return False
        partials = (each for each in self._store.of(frame.base + one.of) if each.kind is Kind.PARTIAL)
        of_class = any(any(map(_is_fsdp1, self._store.of(each.data[0]))) for each in partials)
        return of_class or not self._is_named_or_other(frame, one.of)

    def is_called(self, frame: Frame, one: ops.Operation) -> bool:
        """Whether ``one`` does nothing with the class but hand it on or call it; by its own name it may do more."""
        match one:
            case ops.Call():
                given = (*one.args, *(value for _, value in one.keywords))
                return all(self._is_given(frame, one, value) for value in given)
            case ops.GetAttribute() | ops.GetItem() | ops.Element() | ops.Entered():
                return self._is_named_or_other(frame, one.of)
            case ops.Unpacked():
                return not self.is_class(frame, one.of)
            # A function in the place of a class would get the object that it is read from.
            case ops.Bind() if frame.body.kind == "class":
                return not self.is_class(frame, one.of)
            case ops.SetAttribute():
                is_of_class = any(each.kind is Kind.CLASS for each in self._store.of(frame.base + one.of))
                return not (is_of_class and self.is_class(frame, one.value))
            case ops.Define(body=Body(kind="class"), given=given):
                return all(self._is_named_or_other(frame, value) for name, value in given if not name)
        return True

    def _is_given(self, frame: Frame, call: ops.Call, value: int) -> bool:
        """Whether what is called may be given ``value``."""
        called = self._store.of(frame.base + call.of)
        if any(one.kind is Kind.EXTERN and one.data in _ASKS for one in called):
            held = [one for one in self._store.of(frame.base + value) if one.kind is Kind.CONTAINER]
            places = frame.body.places(value)
            is_written_out = all(call.at[:2] <= at[:2] and at[2:] <= call.at[2:] for at in places)
            tables = [one for one in held if self._has_class(one)]
            is_here = is_written_out and all(one.data == (frame, value) for one in tables)
            return (not tables or is_here) and self._is_named_or_other(frame, value)
        return not self.is_class(frame, value) or (bool(called) and all(map(self._hands_on, called)))

    def _has_class(self, one: Obj) -> bool:
        return any(map(_is_fsdp1, self._store.of(self._machine.items.all(one))))

    def _hands_on(self, one: Obj) -> bool:
        if one.kind is Kind.METHOD:
            return one.data[0].kind is Kind.CONTAINER
        return one.kind in _RUN or (one.kind is Kind.EXTERN and one.data in _KEEPS)

    def _is_named_or_other(self, frame: Frame, value: int) -> bool:
        """Whether ``value`` is the class under the name that it is imported by, or is not the class."""
        if not self.is_class(frame, value):
            return True
        match self._makers(frame.body)[value]:
            case [ops.Import()]:
                return True
            case [ops.Copy(of=of)]:
                return self._is_named_or_other(frame, of)
            case [ops.Free(name=name)]:
                return name in self._imported(frame.module.body)
            case [ops.GetAttribute(of=of)]:
                return all(one.kind in (Kind.MODULE, Kind.EXTERN) for one in self._store.of(frame.base + of))
        return False


def _is_fsdp1(one: Obj) -> bool:
    return one.kind is Kind.EXTERN and canonical(one.data) == FSDP


def _makers(body: Body) -> Mapping[int, list[ops.Operation]]:
    found: dict[int, list[ops.Operation]] = defaultdict(list)
    for one in body.operations:
        if isinstance(one, ops.Copy | ops.Free | ops.GetAttribute | ops.Import):
            found[one.to].append(one)
    return found


def _imported(module: Body) -> frozenset[str]:
    """The names that ``module`` imports."""
    values = {one.to for one in module.operations if isinstance(one, ops.Import)}
    return frozenset(one.name for one in module.operations if isinstance(one, ops.Bind) and one.of in values)
