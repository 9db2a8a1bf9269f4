"""Units that run several times before one backward, and read their weights more than once each time.

FSDP1 adds up the gradients of each run of a unit first, FSDP2 in the order in which all of them come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from fsdp_rules.ir.operations import Body, Call, Element, GetAttribute, GetItem, SetAttribute
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class
from fsdp_rules.values.library import table
from fsdp_rules.values.tensor_reads import TensorReads, are_apart, is_in

#: Modules of torch that read a weight once for each step of a sequence.
_RECURRENT = frozenset({"torch.nn.GRU", "torch.nn.LSTM", "torch.nn.RNN"})


class RepeatedUnits:
    """``is_unit`` says whether an object is a unit, or a model."""

    def __init__(self, reads: TensorReads, is_unit: Callable[[Obj], bool]) -> None:
        self._reads = reads
        self._is_unit = is_unit
        self.reads_twice = cache(self._reads_again)
        self._inits = [body for body in reads.bodies if body.name == "__init__"]
        self._runs: dict[Body, set[Body]] = defaultdict(set)

    def are_there(self) -> bool:
        """Whether some unit that reads a weight more than once runs again before a backward."""
        if not any(map(self._shares_weights, self._reads.bodies)):
            return False
        for body in self._reads.bodies:
            for _, call in _with_gradients(body):
                self._runs[body].update(run for run, _ in self._reads.runs(body, call))
        ending = self._reaching(body for body in self._reads.bodies if any(_backwards(body)))
        running = self._reaching(body for body in self._reads.bodies if any(self._unit_calls(body)))
        return any(self._repeats(body, running, ending) for body in self._reads.bodies)

    def _repeats(self, body: Body, running: set[Body], ending: set[Body]) -> bool:
        own = set(self._unit_calls(body))
        ends, runs = set(_backwards(body)), list[tuple[int, Call]]()
        for place, one in _with_gradients(body):
            called = {run for run, _ in self._reads.runs(body, one)}
            if called & ending:
                ends.add(place)
            elif place in own or called & running:
                runs.append((place, one))
        return any(
            self._is_again(body, place, one, ends)
            or any(
                self._reads.callees(body, one) & self._reads.callees(body, other)
                and not any(place < end < after for end in ends)
                and not are_apart(body, place, one.of, after, other.of)
                for after, other in runs
                if after > place
            )
            for place, one in runs
        )

    def _is_again(self, body: Body, place: int, call: Call, ends: set[int]) -> bool:
        """Whether a loop runs one unit several times, and no backward."""
        makers = {one.to: at for at, one in enumerate(body.operations) if isinstance(one, Element | GetItem)}
        return any(
            place in loop and makers.get(call.of, -1) not in loop and not any(end in loop for end in ends)
            for loop in body.loops
        )

    def _unit_calls(self, body: Body) -> Iterator[int]:
        # What the program puts under names that it makes may be called as these are, and is not.
        known = table("model").keys() | table("named").keys()
        methods = {one.to for one in body.every(GetAttribute) if one.name in known}
        for place, one in _with_gradients(body):
            callees = self._reads.callees(body, one)
            if one.of not in methods and any(self._is_unit(each) and self.reads_twice(each) for each in callees):
                yield place

    def _reads_again(self, one: Obj) -> bool:
        """Whether a module of the tree reads a weight more than once: it has a recurrent module, or ties one."""
        seen: set[Class] = set()
        left = [each.data[0] for each in self._reads.modules(one) if isinstance(each.data[0], Class)]
        while left:
            cls = left.pop()
            if cls in seen:
                continue
            seen.add(cls)
            left += cls.above
            for body in (one for one in self._inits if is_in(one, cls.body)):
                if self._shares_weights(body):
                    return True
                held = (each for call in _calls(body) for each in self._reads.held(body, call.of))
                left += [each.data for each in held if each.kind is Kind.CLASS]
        return False

    def _shares_weights(self, body: Body) -> bool:
        parts = {one.to for one in body.every(GetAttribute)}
        if any(
            isinstance(one, SetAttribute) and one.name == "weight" and one.value in parts for one in body.operations
        ):
            return True
        held = (each for call in _calls(body) for each in self._reads.held(body, call.of))
        return any(each.kind is Kind.EXTERN and each.data in _RECURRENT for each in held)

    def _reaching(self, bodies: Iterable[Body]) -> set[Body]:
        found, known = set(bodies), -1
        while known < len(found):
            known = len(found)
            found |= {body for body, called in self._runs.items() if called & found}
        return found


def _calls(body: Body) -> list[Call]:
    return body.every(Call)


def _with_gradients(body: Body) -> Iterator[tuple[int, Call]]:
    for place, one in enumerate(body.operations):
        if isinstance(one, Call) and not any(place in each for each in body.detached):
            yield place, one


def _backwards(body: Body) -> Iterator[int]:
    methods = {one.to for one in body.every(GetAttribute) if one.name == "backward"}
    return (place for place, one in enumerate(body.operations) if isinstance(one, Call) and one.of in methods)
