"""Code that takes wrappers off a model by ``.module`` until none is left: under the shim it ends, and has the model.

FSDP1's ``.module`` is another object, which has no ``.module`` and is no FSDP. Here it is the same one, so that what is
asked about it depends on who asks: whoever has just read ``.module`` of it is told that nothing is left to take off.
"""

from __future__ import annotations

import dis
import functools
from dataclasses import dataclass
from types import CodeType, FrameType

#: A program that ends does not replace one name by its own ``.module`` that often with no forward in between.
_MANY = 1000
_DEEP = 100
_NAMES = ("module", "_fsdp_wrapped_module")


class Reads:
    """Reads of ``.module`` that give the same object again, in a row."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A forward has run: whoever reads now has done something in between."""
        self._object = self._frame_id = 0
        self._code: CodeType | None = None
        self._in_frame = self._in_code = self._pairs = 0
        self._has_asked = False
        # Identities of frames are used again once a call is over, unless the frame is held.
        self._held: FrameType | None = None

    def note(self, module: object, frame: FrameType) -> None:
        """``frame`` reads ``module.module``, or asks whether it can.

        Raises AttributeError where it asks and goes on unwrapping what it gets, RuntimeError where it does so without
        end and without asking.
        """
        facts = _facts(frame.f_code)
        asks = frame.f_lasti in facts.asks
        # Whoever asks, takes and asks again has put what it took somewhere else, as onto a stack.
        endless = asks and self._pairs >= _MANY and id(frame) == self._frame_id and id(module) == self._object
        if asks and (facts.replaces or endless or _is_inside_itself(frame)):
            self._pairs = 0
            raise AttributeError("nothing is left to unwrap")
        if (id(module), frame.f_code) != (self._object, self._code):
            self.forget()
        if id(frame) != self._frame_id:
            self._in_frame = self._pairs = 0
        self._object, self._code, self._frame_id = id(module), frame.f_code, id(frame)
        self._held = frame if facts.replaces else None
        self._in_frame, self._in_code = self._in_frame + 1, self._in_code + 1
        self._pairs, self._has_asked = self._pairs + (self._has_asked and not asks), asks
        endless = self._in_code % _DEEP == 0 and _recurses(frame)
        if endless or (facts.replaces and self._in_frame % _MANY == 0):
            self.forget()
            if "AttributeError" in frame.f_code.co_names:
                raise AttributeError("nothing is left to unwrap")
            raise RuntimeError(
                f"this loop over .module does not end: fsdp_compat shards a {type(module).__name__} in place, so its "
                ".module is the module itself. Remove the loop and use the model as it is."
            )

    def has_unwrapped(self, module: object, frame: FrameType) -> bool:
        """Whether ``frame`` has what it asks about from ``module.module``, which is FSDP no more under FSDP1."""
        if id(module) != self._object or frame.f_code is not self._code:
            return False
        return frame is self._held or (id(frame) != self._frame_id and _is_inside_itself(frame))


@dataclass(frozen=True)
class _Facts:
    """``asks``: where code asks whether there is ``.module``; ``replaces``: it has ``x = x.module`` somewhere."""

    asks: frozenset[int]
    replaces: bool


@functools.lru_cache(maxsize=256)
def _facts(code: CodeType) -> _Facts:
    instructions = list(dis.get_instructions(code))
    asks, replaces = set(), False
    for at, instruction in enumerate(instructions):
        before = instructions[max(0, at - 8) : at]
        # Python 3.11 calls builtins by PRECALL once code has run often.
        is_call = instruction.opname.startswith(("CALL", "PRECALL"))
        called = {name for each in before for name in _names(each)} & {"hasattr", "getattr"} if is_call else set()
        # The name may be a variable: only calls that read ``.module`` are looked up here.
        if ("hasattr" in called and instruction.arg == 2) or ("getattr" in called and instruction.arg == 3):
            asks.add(instruction.offset)
        named = "getattr" in called and any(each.argval in _NAMES for each in before[-4:])
        if named or (instruction.opname.startswith("LOAD_") and instruction.argval in _NAMES):
            after = instructions[at + 1 : at + 4]
            # Of ``d[key] = d[key].module`` the dictionary is loaded, and no name stored.
            opname = "LOAD_" if any(each.opname == "STORE_SUBSCR" for each in after) else "STORE_"
            stored = {name for each in after if each.opname.startswith(opname) for name in _names(each)}
            loaded = {name for each in before if each.opname.startswith("LOAD_") for name in _names(each)}
            replaces = replaces or bool(stored & loaded)
    return _Facts(frozenset(asks), replaces)


def _names(instruction: dis.Instruction) -> tuple[str, ...]:
    value = instruction.argval
    return value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()


def _is_inside_itself(frame: FrameType) -> bool:
    return _times_around(frame, 1) > 0


def _recurses(frame: FrameType) -> bool:
    return _times_around(frame, _DEEP // 2) >= _DEEP // 2


def _times_around(frame: FrameType, most: int) -> int:
    """How often the code of ``frame`` is running around it, up to ``most``."""
    calls, each = 0, frame.f_back
    while each is not None and calls < most:
        calls, each = calls + (each.f_code is frame.f_code), each.f_back
    return calls


reads = Reads()
