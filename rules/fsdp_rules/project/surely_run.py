"""What surely ran, as the steps of a function are gone through from its end: by the arms of tests around each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

A = TypeVar("A")


class SurelyRun(Generic[A]):
    """The places that surely ran, each by the arms around it, innermost first.

    ``both`` gives all arms of the test that an arm is of; one that never runs is among them where there is no other.
    """

    def __init__(self, both: Callable[[A], Iterable[A]]) -> None:
        self._both = both
        self._known: set[tuple[A, ...]] = set()

    def follows(self, arms: tuple[A, ...]) -> bool:
        """Whether something that surely ran stands below what is in ``arms``, in one of them."""
        return any(arms[outer:] in self._known for outer in range(len(arms)))

    def add(self, arms: tuple[A, ...]) -> bool:
        """Note what runs in ``arms``; whether that, or what all arms of a test do, runs in any case."""
        self._known.add(arms)
        while arms and all((one, *arms[1:]) in self._known for one in self._both(arms[0])):
            arms = arms[1:]
            self._known.add(arms)
        return not arms
