"""A pickle's operations carried out on plain lists, pairs and names, so that nothing is called, hashed or imported."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fsdp_migrate.checkpoints.audit.inventory import Disagrees


@dataclass(frozen=True)
class Named:
    """A class or function by its name."""

    module: str
    name: str


@dataclass(eq=False)
class Pairs:
    """A dictionary: what was set in it, in order, a key perhaps several times."""

    held: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(eq=False)
class Made:
    """A call and what follows it: a state, items and pairs."""

    function: Any
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: Pairs = field(default_factory=Pairs)


@dataclass(eq=False)
class Stored:
    """A persistent id."""

    key: Any


_MARK = object()
_MAKERS: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": Pairs,
    "EMPTY_SET": lambda: Made("set", ()),
}
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_ENDS = frozenset({"PROTO", "FRAME", "STOP"})
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
_TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
_ARGUMENTS = frozenset({*_NUMBERS, *_TEXTS, *_BYTES})


def structure(data: bytes) -> Any:
    """What the first pickle in ``data`` describes. Raises :class:`Disagrees` for one that it cannot follow."""
    machine = _Machine()
    try:
        for operation, argument, _ in pickletools.genops(data):
            machine.do(operation.name, argument)
        return machine.stack[-1]
    except Disagrees:
        raise
    except Exception as error:  # whatever broken data makes of it
        raise Disagrees(f"a pickle that the second reader cannot read: {error}") from error


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _ARGUMENTS:
            stack.append(argument)
        elif name in _PUTS:
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in _GETS:
            stack.append(self._memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _MAKERS:
            stack.append(_MAKERS[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name not in _ENDS:
            self._combine(name, argument)

    def _combine(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "TUPLE" | "LIST" | "DICT" | "FROZENSET":
                stack.append(_container(name, self._above()))
            case "APPEND" | "APPENDS" | "ADDITEMS":
                added = [stack.pop()] if name == "APPEND" else self._above()
                (stack[-1] if isinstance(stack[-1], list) else stack[-1].items).extend(added)
            case "SETITEM" | "SETITEMS":
                flat = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self._above()
                pairs = stack[-1] if isinstance(stack[-1], Pairs) else stack[-1].pairs
                pairs.held.extend(zip(flat[::2], flat[1::2], strict=True))
            case "GLOBAL":
                stack.append(Named(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                stack[-2:] = [Named(stack[-2], stack[-1])]
            case "REDUCE" | "NEWOBJ":
                stack[-2:] = [Made(stack[-2], stack[-1])]
            case "NEWOBJ_EX":
                stack[-3:] = [Made(stack[-3], (*stack[-2], stack[-1]))]
            case "INST" | "OBJ":
                above = self._above()
                function = Named(*argument.split(" ", 1)) if name == "INST" else above.pop(0)
                stack.append(Made(function, tuple(above)))
            case "BUILD":
                state = stack.pop()
                stack[-1].state = state
            case "BINPERSID":
                stack[-1] = Stored(stack[-1])
            case "PERSID":
                stack.append(Stored(argument))
            case "POP":
                stack.pop()
            case "POP_MARK":
                self._above()
            case "DUP":
                stack.append(stack[-1])
            case _:
                raise Disagrees(f"the opcode {name}, which checkpoints never contain")

    def _above(self) -> list[Any]:
        """What lies above the last mark, taken from the stack together with it."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise Disagrees("a pickle opcode refers to a mark that does not exist")
        above = self.stack[place + 1 :]
        del self.stack[place:]
        return above


def _container(name: str, above: list[Any]) -> Any:
    match name:
        case "TUPLE":
            return tuple(above)
        case "LIST":
            return above
        case "DICT":
            return Pairs(list(zip(above[::2], above[1::2], strict=True)))
        case _:
            return Made("frozenset", (), items=above)
