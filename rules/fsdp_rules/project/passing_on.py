"""Functions outside of the tree that give an argument back, as itself or as what behaves like it."""

from __future__ import annotations

from typing import NamedTuple


class Passed(NamedTuple):
    """Which argument a function gives back: its position, and the keyword that it has there."""

    position: int
    keyword: str


_FIRST = {
    "builtins.iter": "",
    "contextlib.closing": "thing",
    "contextlib.nullcontext": "enter_result",
    "copy.copy": "x",
    "inspect.unwrap": "func",
    "torch.compile": "model",
    "typing.assert_type": "val",
    "typing.reveal_type": "obj",
    "typing_extensions.assert_type": "val",
    "typing_extensions.reveal_type": "obj",
    "weakref.proxy": "object",
}
#: By the dotted name of each function.
PASSING_ON = {
    **{name: Passed(0, keyword) for name, keyword in _FIRST.items()},
    "typing.cast": Passed(1, "val"),
    "typing_extensions.cast": Passed(1, "val"),
}
