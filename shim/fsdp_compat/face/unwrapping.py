"""Loops that unwrap a model by ``.module`` until it is no FSDP module: under the shim that is the model."""

from __future__ import annotations

import dis
from types import CodeType, FrameType

#: A program that ends does not replace one name by its own ``.module`` that often with no forward in between.
_MANY = 1000
_DEEP = 100


class Reads:
    """Reads of ``.module`` that give the same object again, in a row."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A forward has run: whoever reads now has done something in between."""
        self._object = self._frame_id = 0
        self._code: CodeType | None = None
        self._offsets: set[int] = set()
        self._in_frame = self._in_code = 0
        # Identities of frames are used again once a call is over, unless the frame is held.
        self._held: FrameType | None = None

    def note(self, module: object, frame: FrameType) -> None:
        """Raise RuntimeError where ``frame`` reads ``module.module`` without end."""
        if (id(module), frame.f_code) != (self._object, self._code):
            self.forget()
        if id(frame) != self._frame_id:
            self._offsets, self._in_frame, self._held = set(), 0, None
        self._object, self._code, self._frame_id = id(module), frame.f_code, id(frame)
        self._offsets.add(frame.f_lasti)
        self._in_frame, self._in_code = self._in_frame + 1, self._in_code + 1
        is_endless = self._in_code % _DEEP == 0 and _recurses(frame)
        if self._in_frame % _MANY == 0:
            is_endless = is_endless or (self._held is frame and _replaces_a_name(frame.f_code, self._offsets))
            self._held = frame
        if is_endless:
            self.forget()
            raise RuntimeError(
                f"this loop over .module does not end: fsdp_compat shards a {type(module).__name__} in place, so its "
                ".module is the module itself. Remove the loop and use the model as it is."
            )


def _replaces_a_name(code: CodeType, offsets: set[int]) -> bool:
    """Whether one of the reads is ``x = x.module`` or ``x = getattr(x, "module")``."""
    instructions = list(dis.get_instructions(code))
    for at, instruction in enumerate(instructions):
        if instruction.offset in offsets:
            after, before = instructions[at + 1 : at + 4], instructions[max(0, at - 7) : at + 1]
            stored = {name for each in after if each.opname.startswith("STORE_") for name in _names(each)}
            if stored & {name for each in before if each.opname.startswith("LOAD_") for name in _names(each)}:
                return True
    return False


def _names(instruction: dis.Instruction) -> tuple[str, ...]:
    value = instruction.argval
    return value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()


def _recurses(frame: FrameType) -> bool:
    calls, each = 0, frame.f_back
    while each is not None and calls < _DEEP // 2:
        calls, each = calls + (each.f_code is frame.f_code), each.f_back
    return calls >= _DEEP // 2


reads = Reads()
