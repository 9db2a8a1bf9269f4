"""Pickles as data: what they name, and the structure that they describe, with nothing of it ever run.

A pickle is a program. Here its calls build inert :class:`Call` objects, whatever they call, so that reading a file
cannot do more than take memory, and the scan before it bounds that.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoints.read.pickle_stack import PickleStack, TooLargeToHash


class BadPickle(Exception):
    """A pickle that is broken, or was made to break its reader; the message says how."""


@dataclass(frozen=True, order=True)
class Global:
    """A class or function that a pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


_GETATTR = frozenset({Global("__builtin__", "getattr"), Global("builtins", "getattr")})
_CALLING = frozenset({"REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD"})
_ORDERED_DICT = Global("collections", "OrderedDict")


@dataclass(eq=False)
class Call:
    """What a pickle would make by calling ``function``, and what it would then set on it."""

    function: Global
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    entries: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        # What it was called with may hold itself twice, 60 levels deep.
        return f"{self.function}(…)"

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, value: Any) -> None:
        self.items.append(value)

    def extend(self, values: Any) -> None:
        self.items.extend(values)

    def add(self, value: Any) -> None:
        self.items.append(value)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value


@dataclass(frozen=True, eq=False, repr=False)
class Persistent:
    """What a pickle keeps outside of itself; torch's keep their storages there."""

    key: Any


class Dictionary(dict[Any, Any]):
    """``collections.OrderedDict``, with what a pickle sets on it kept apart from its entries."""

    attributes: Any = None

    def __init__(self, pairs: Any = ()) -> None:
        # Python 2 gives the pairs to the call; the scan has not seen their keys.
        if not all(isinstance(key, str | int | float | bytes | None) for key, _ in pairs):
            raise BadPickle("an OrderedDict made of pairs whose keys are neither text nor numbers")
        super().__init__(pairs)

    def __setstate__(self, state: Any) -> None:
        self.attributes = state


@dataclass(frozen=True)
class Pickled:
    """One pickle: its value, or why it has none, and all that it names.

    ``fetched`` are the names that it would reach with ``getattr``; they are not among ``names``. Both are complete up
    to the point where the pickle breaks, and a real reader would get no further.
    """

    value: Any
    error: str | None
    names: frozenset[Global]
    fetched: frozenset[Global]
    length: int


def read(data: bytes) -> Pickled:
    """The first pickle in ``data``, broken or not."""
    return read_next(io.BytesIO(data))


def read_next(stream: io.BytesIO) -> Pickled:
    """The pickle that starts where ``stream`` is, broken or not; leaves it behind that."""
    start = stream.tell()
    names: set[Global] = set()
    try:
        length = _scan(stream, names)
    except BadPickle as error:
        return Pickled(None, str(error), frozenset(names), frozenset(), len(stream.getbuffer()) - start)
    stream.seek(start)
    reader = _Reader(stream)
    value, error_text = None, None
    try:
        value = reader.load()
    except Exception as error:  # the C reader raises whatever it meets in broken data
        error_text = f"not a complete pickle: {type(error).__name__}: {error}"
    stream.seek(start + length)
    return Pickled(value, error_text, frozenset(names | reader.names), frozenset(reader.fetched), length)


def starts_as_old_pickle(path: Path) -> bool:
    """Whether a file without the mark of a protocol is a pickle up to its end, or up to the first call in it.

    Of protocols 0 and 1, which have no mark; a text that looks like one has nothing on the stack to be called.
    """
    stack = PickleStack()
    try:
        with path.open("rb") as stream:
            for operation, argument, _ in pickletools.genops(stream):
                if operation.name in _CALLING:
                    return stack.depth > 1 or operation.name == "INST"
                if operation.name == "STOP":
                    return stack.depth > 0
                stack.do(operation, argument)
    except Exception:  # genops raises whatever its readers meet in what is no pickle
        return False
    return False


def described(value: Any) -> str:
    """``value`` in few words: what a pickle shares by reference, ``repr`` would spell out each time."""
    short = reprlib.Repr()
    short.maxlevel = 2
    return value if isinstance(value, str) else short.repr(value)


def global_of(value: Any) -> Global | None:
    """The global that ``value`` stands for where a pickle names one without calling it."""
    named = getattr(value, "named", None)
    return named if isinstance(value, type) and isinstance(named, Global) else None


def _scan(stream: io.BytesIO, names: set[Global]) -> int:
    """The length of the next pickle in ``stream``; its GLOBALs go to ``names``, the others need the reader.

    Raises :class:`BadPickle` for one that does not parse, or whose memo would not fit into memory.
    """
    slots = 0
    start = stream.tell()
    end = start
    stack = PickleStack()
    try:
        for operation, argument, position in pickletools.genops(stream):
            stack.do(operation, argument)
            match operation.name:
                case "GLOBAL" | "INST":
                    module, _, attribute = str(argument).partition(" ")
                    names.add(Global(module, attribute))
                case "PUT" | "BINPUT" | "LONG_BINPUT":
                    # The C reader makes room for all slots below, so that one large number takes all memory.
                    if argument is None or argument > slots:
                        raise BadPickle(f"memo slot {argument}, but the next one is {slots}")
                    slots += 1
                case "MEMOIZE":
                    slots += 1
                case "EXT1" | "EXT2" | "EXT4":
                    raise BadPickle(f"extension {argument}, which only the program that wrote it can resolve")
                case "STOP":
                    end = (position or 0) + 1
    except BadPickle:
        raise
    except TooLargeToHash as error:
        raise BadPickle(str(error)) from error
    except Exception as error:  # genops raises whatever its readers meet in broken data
        raise BadPickle(f"not a complete pickle: {error}") from error
    return end - start


class _Reader(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, encoding="latin-1")
        self.names: set[Global] = set()
        self.fetched: set[Global] = set()
        self._classes: dict[Global, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        wanted = Global(str(module), str(name))
        self.names.add(wanted)
        return self._inert(wanted)

    def _inert(self, wanted: Global) -> Any:
        if wanted == _ORDERED_DICT:
            return Dictionary
        if wanted not in self._classes:
            make = _attribute_class if wanted in _GETATTR else _inert_class
            self._classes[wanted] = make(self, wanted)
        return self._classes[wanted]

    def attribute(self, owner: Any, name: Any) -> Any:
        """The attribute of a class, as enumerations and nested classes are pickled: as inert as its owner."""
        outer = global_of(owner)
        if outer is None:
            self.fetched.add(Global("unknown", described(name)))
            raise BadPickle(f"it reads the attribute {described(name)} of an object that is not a class")
        if not isinstance(name, str):
            raise BadPickle(f"it reads the attribute {described(name)}, which is not a valid name")
        inner = Global(outer.module, f"{outer.name}.{name}")
        self.fetched.add(inner)
        return self._inert(inner)

    def persistent_load(self, key: Any) -> Persistent:
        return Persistent(key)


def _inert_class(reader: _Reader, wanted: Global) -> type[Call]:
    """A class whose instances remember what ``wanted`` would have been called with."""

    class Inert(Call):
        named = wanted

        def __new__(cls, *arguments: Any, **keywords: Any) -> Inert:
            made = object.__new__(cls)
            Call.__init__(made, wanted, (*arguments, *sorted(keywords.items())))
            return made

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            return

    return Inert


def _attribute_class(reader: _Reader, wanted: Global) -> type[Any]:
    """A class that, when called, does what ``getattr`` does, with inert classes only."""

    class Attribute:
        named = wanted

        def __new__(cls, owner: Any, name: Any) -> Any:
            return reader.attribute(owner, name)

    return Attribute
