"""How large the keys of a pickle are for ``hash``, found before anything hashes them.

A tuple that holds another one twice, sixty levels deep, takes 300 bytes in a pickle and years in ``hash``, since a
tuple keeps no hash of its parts. Reading such a pickle must take no longer than its size explains.
"""

from __future__ import annotations

from pickletools import OpcodeInfo

#: More parts than any key of a checkpoint has.
_MOST_PARTS = 10_000
_TUPLES = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"})


class TooLargeToHash(Exception):
    """A key or a member of a set with more parts than a reader can hash; the message says so."""


class PickleStack:
    """The stack of a pickle's reader, with the number of parts of each value in place of the value.

    What the reader shares counts as often as it is reached, as ``hash`` does. A pickle that takes more from the stack
    than there is gives no error here: the reader refuses it.
    """

    def __init__(self) -> None:
        self._parts: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[int, int] = {}

    @property
    def depth(self) -> int:
        """How many values are on it."""
        return len(self._parts)

    def do(self, operation: OpcodeInfo, argument: object) -> None:
        """Take one operation into account. Raises :class:`TooLargeToHash` where it hashes too much."""
        name = operation.name
        if name == "MARK":
            self._marks.append(len(self._parts))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(self._memo) if name == "MEMOIZE" else argument
            if isinstance(place, int) and self._parts:
                self._memo[place] = self._parts[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self._parts.append(self._memo.get(argument, 1) if isinstance(argument, int) else 1)
        elif name == "DUP":
            self._parts += self._parts[-1:]
        else:
            self._replace(operation)

    def _replace(self, operation: OpcodeInfo) -> None:
        takes = [kind.name for kind in operation.stack_before]
        above: list[int] = []
        if "mark" in takes:
            start = self._marks.pop() if self._marks else 0
            above = self._parts[start:]
            del self._parts[start:]
            takes = takes[: takes.index("mark")]
        below = self._parts[-len(takes) :] if takes else []
        if takes:
            del self._parts[-len(takes) :]
        self._refuse_large(operation.name, below, above)
        taken = (*below, *above)
        made = 1 + sum(taken) if operation.name in _TUPLES else 1
        self._parts += [made] * len(operation.stack_after)

    def _refuse_large(self, name: str, below: list[int], above: list[int]) -> None:
        match name:
            case "SETITEM":
                hashed = below[1:2]
            case "SETITEMS" | "DICT":
                hashed = above[::2]
            case "ADDITEMS" | "FROZENSET":
                hashed = above
            case _:
                return
        if any(parts > _MOST_PARTS for parts in hashed):
            raise TooLargeToHash(f"a key or set member of more than {_MOST_PARTS} parts, which no checkpoint has")
