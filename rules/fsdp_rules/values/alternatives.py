"""Objects of which a run has one alone: those of several classes that one call makes, as a table of strategies does."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from fsdp_rules.ir.operations import At
from fsdp_rules.values.abstract import Kind, Obj, Site
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.interpreter import Interpreter


class Alternatives:
    """What a method of one of them does never gets what a method of another one has wrapped."""

    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._frames = {frame.base: frame for frame in machine.frames}
        self._since = cache(self._place)
        self._is_apart = cache(self._excludes)

    def excludes(self, frame: Frame, one: Obj) -> bool:
        """Whether ``one`` is a model, or something of one, that no run has in ``frame``, nor any program."""
        since = self._since(one)
        return since is not None and self._is_apart(frame, since)

    def _excludes(self, frame: Frame, since: Site) -> bool:
        if not self._machine.may_share(frame.body.path, since.path):
            return True
        wrapping = self._frames.get(since.frame) if since.frame else None
        if wrapping is None:
            return False
        here, there = self._owners(frame), self._owners(wrapping)
        return bool(here and there) and all(_are_apart(mine, other) for mine in here for other in there)

    def _place(self, one: Obj) -> Site | None:
        """Where the model of ``one`` is wrapped, or the only one that a container has something of."""
        if one.kind is not Kind.CONTAINER:
            return one.since
        several = {each.since for each in self._machine.store.of(self._machine.items.all(one))}
        return several.pop() if len(several) == 1 else None

    def _owners(self, frame: Frame | None) -> list[Obj]:
        """What ``self`` is in ``frame``, or around it."""
        while frame is not None and frame.owner is None:
            frame = frame.parent
        if frame is None or not frame.body.parameters:
            return []
        return list(self._machine.store.of(frame.base))


def _are_apart(one: Obj, other: Obj) -> bool:
    """Whether the two are of different classes, and the same call makes them."""
    if one.kind is not Kind.INSTANCE or other.kind is not Kind.INSTANCE or one.data[1] is None:
        return False
    both = isinstance(one.data[0], Class) and isinstance(other.data[0], Class)
    return both and one.data[0] is not other.data[0] and one.data[1] == other.data[1]


def _is_there(machine: Interpreter, cell: int) -> bool:
    """Whether what is in ``cell`` is known, and surely not None."""
    held = machine.store.of(cell)
    return bool(held) and all(one.kind is not Kind.OPEN for one in held) and not machine.store.may_be_none(cell)


def held_by_place(machine: Interpreter) -> tuple[dict[str, dict[At, set[Obj]]], dict[str, set[At]]]:
    """All that each expression may be, by files and places, of all frames that run it.

    And the places where that leaves something out, which only a run with another object has there.
    """
    found: dict[str, dict[At, set[Obj]]] = defaultdict(lambda: defaultdict(set))
    left_out: dict[str, set[At]] = defaultdict(set)
    alternatives = Alternatives(machine)
    for frame in machine.frames:
        by_place = found[frame.body.path]
        unreached = [at for value, at in frame.body.absent if _is_there(machine, frame.base + value)]
        for at, value in frame.body.uses:
            held = machine.store.of(frame.base + value)
            is_run = not any(place[:2] <= at[:2] and at[2:] <= place[2:] for place in unreached)
            here = [one for one in held if is_run and not alternatives.excludes(frame, one)]
            by_place[at].update(here)
            if len(here) < len(held):
                left_out[frame.body.path].add(at)
    return found, left_out
