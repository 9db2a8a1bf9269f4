"""Work on bytes in threads: reading, comparing and hashing all let go of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: Each may hold a whole tensor, and so there are no more, whatever the machine has.
_THREADS = 2


def mapped(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """What ``function`` gives for each of ``items``, in their order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(function, items)
