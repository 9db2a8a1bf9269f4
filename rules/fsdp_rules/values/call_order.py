"""What runs before and after an operation, by the order of the calls in each function and in those that call it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Generic, TypeVar

from fsdp_rules.ir.operations import Body, Call
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.tensor_reads import are_apart, is_in

Event = TypeVar("Event")


class CallOrder(Generic[Event]):
    """``happens`` says what a call does by itself, ``ends`` which of that is over before its function is left.

    Loops are followed once: what a loop makes in each round is wrapped and trained in the order of its body.
    """

    def __init__(
        self,
        machine: Interpreter,
        happens: Callable[[Frame, Call], Iterable[Event]],
        ends: Callable[[Body, Call], Set[Event]] = lambda body, call: frozenset(),
    ) -> None:
        self._machine = machine
        self._ends = ends
        self._making = {frame.body for frame in machine.frames if frame.body.name in ("__init__", "__enter__")}
        #: What each call of each body leads to, by the place of the call.
        self._events: dict[Body, dict[int, set[Event]]] = defaultdict(lambda: defaultdict(set))
        self._runs: dict[Body, dict[int, set[Body]]] = defaultdict(lambda: defaultdict(set))
        self._callers: dict[Body, set[tuple[Body, int]]] = defaultdict(set)
        #: What each call does by itself.
        self._own: dict[Body, dict[int, set[Event]]] = defaultdict(lambda: defaultdict(set))
        for frame in machine.frames:
            self._note(frame, happens)
        self._join()

    def around(self, body: Body, place: int) -> Iterator[tuple[Body, Call, set[Event], set[Event]]]:
        """What may have happened before the operation ``place`` of ``body``, and what may happen after it has ended.

        Each with the function that has both in itself or in what it calls, from ``body`` outwards, and the call there
        that is, or leads to, the operation.
        """
        pending, seen = [(body, place, set[Event]())], set[tuple[Body, int]]()
        while pending:
            around, at, before = pending.pop()
            call = around.operations[at]
            if (around, at) not in seen and isinstance(call, Call):
                seen.add((around, at))
                earlier, later = self.beside(around, at)
                before = before | earlier
                yield around, call, before, later
                pending += [(caller, where, before) for caller, where in self._callers[around]]

    def beside(self, body: Body, place: int, since: int | None = None) -> tuple[set[Event], set[Event]]:
        """What may happen before and after the operation ``place`` in one run of ``body``.

        ``since``: what a loop does after it is before it, too, where that operation is not in the loop.
        """
        found: dict[bool, set[Event]] = {False: set(), True: set()}
        for at, events in self._events[body].items():
            if events and at != place and not are_apart(body, min(place, at), 0, max(place, at), 0):
                found[at > place] |= events
                if since is not None and any(at in one and place in one and since not in one for one in body.loops):
                    found[False] |= events
        return found[False], found[True]

    def latest(self, body: Body, place: int, seen: Set[Body] = frozenset()) -> set[Event]:
        """What happened last before the operation ``place`` of ``body``, there or where it is called; of all ways."""
        found = set[Event]()
        for at, events in sorted(self._events[body].items(), reverse=True):
            if events and at < place and not are_apart(body, at, 0, place, 0):
                found |= self._own[body][at] or set[Event]().union(
                    *(self.latest(one, len(one.operations), {*seen, body}) for one in self._runs[body][at] - seen)
                )
                if not any(at in span and place not in span for arms in body.arms for span in arms):
                    return found
        callers = () if body in seen else self._callers[body]
        return found.union(*(self.latest(one, where, {*seen, body}) for one, where in callers))

    def own(self, body: Body) -> set[Event]:
        """What the calls in ``body`` do by themselves."""
        return set[Event]().union(*self._own[body].values())

    def at(self, body: Body, place: int) -> set[Event]:
        """What the call ``place`` of ``body`` leads to."""
        return self._events[body][place]

    def all_of(self, body: Body) -> set[Event]:
        """What ``body``, and what it calls, leads to."""
        calls = (
            (one, events)
            for place, events in self._events[body].items()
            if isinstance(one := body.operations[place], Call)
        )
        return set[Event]().union(*(events - self._ends(body, one) for one, events in calls))

    def callers(self, body: Body) -> Set[tuple[Body, int]]:
        """The calls that run ``body``, each with the body that it is in and its place there."""
        return self._callers[body]

    def _note(self, frame: Frame, happens: Callable[[Frame, Call], Iterable[Event]]) -> None:
        body, entered = frame.body, {value for value, _ in frame.body.entered}
        for place, one in enumerate(body.operations):
            if not isinstance(one, Call):
                continue
            self._own[body][place].update(happens(frame, one))
            self._events[body][place] |= self._own[body][place]
            for callee in self._machine.store.of(frame.base + one.of):
                for run in self._run_by(callee, one.to in entered):
                    self._runs[body][place].add(run)
                    self._callers[run].add((body, place))

    def _run_by(self, one: Obj, is_entered: bool = False) -> Iterator[Body]:
        """The bodies that a call of ``one`` runs; ``is_entered``: and a ``with`` that enters what it gives."""
        if one.body is not None:
            yield one.body
        elif one.kind is Kind.PARTIAL:
            yield from (
                run for each in self._machine.store.of(one.data[0]) if each is not one for run in self._run_by(each)
            )
        elif one.kind is Kind.CLASS and isinstance(one.data, Class):
            family = (one.data, *one.data.above)
            for name in ("__init__", "__enter__") if is_entered else ("__init__",):
                runs = [run for run in self._making if run.name == name]
                yield from [run for each in family for run in runs if is_in(run, each.body)][:1]

    def _join(self) -> None:
        """Add to each call what happens in what it runs, until nothing is new."""
        pending = [body for body, calls in self._events.items() if any(calls.values())]
        while pending:
            body = pending.pop()
            held = self.all_of(body)
            for caller, place in self._callers[body]:
                if not held <= self._events[caller][place]:
                    self._events[caller][place] |= held
                    pending.append(caller)
