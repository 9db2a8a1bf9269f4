"""Which wraps run after an operation, by the order of the calls in each function and in those that call it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from fsdp_rules.ir.operations import Body, Call
from fsdp_rules.values.abstract import Kind, Obj, Site
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.tensor_reads import are_apart, is_in


class WrapOrder:
    """Loops are followed once: what a loop makes in each round is wrapped and trained in the order of its body."""

    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._inits = {frame.body for frame in machine.frames if frame.body.name == "__init__"}
        #: The wraps that each call of each body runs, by the place of the call.
        self._wraps: dict[Body, dict[int, set[Site]]] = defaultdict(lambda: defaultdict(set))
        self._runs: dict[Body, dict[int, set[Body]]] = defaultdict(lambda: defaultdict(set))
        self._callers: dict[Body, set[tuple[Body, int]]] = defaultdict(set)
        sites = {one.since for one in machine.objects.models() if one.since is not None}
        for frame in machine.frames:
            self._note(frame, [one for one in sites if (one.path, one.frame) == (frame.body.path, frame.base)])
        self._join()

    def after(self, body: Body, place: int) -> Iterator[tuple[Body, Call, set[Site], set[Site]]]:
        """The wraps that may run after the operation ``place`` of ``body``: in it, or after it in what calls it.

        Each with the body that has both below each other, and the call there that is, or runs, the earlier one. The
        last are the wraps that may have run before it.
        """
        pending, seen = [(body, place, set[Site]())], set[tuple[Body, int]]()
        while pending:
            around, at, before = pending.pop()
            if (around, at) not in seen:
                seen.add((around, at))
                call = around.operations[at]
                before = before | self._beside(around, at, range(at))
                if isinstance(call, Call) and (
                    found := self._beside(around, at, range(at + 1, len(around.operations)))
                ):
                    yield around, call, found, before
                pending += [(caller, where, before) for caller, where in self._callers[around]]

    def _note(self, frame: Frame, sites: Iterable[Site]) -> None:
        body = frame.body
        for place, one in enumerate(body.operations):
            if not isinstance(one, Call):
                continue
            self._wraps[body][place].update(site for site in sites if (site.line, site.column) == one.at[:2])
            for callee in self._machine.store.of(frame.base + one.of):
                for run in self._run_by(callee):
                    self._runs[body][place].add(run)
                    self._callers[run].add((body, place))

    def _run_by(self, one: Obj) -> Iterator[Body]:
        """The bodies that a call of ``one`` runs."""
        if one.body is not None:
            yield one.body
        elif one.kind is Kind.PARTIAL:
            yield from (
                run for each in self._machine.store.of(one.data[0]) if each is not one for run in self._run_by(each)
            )
        elif one.kind is Kind.CLASS and isinstance(one.data, Class):
            family = (one.data, *one.data.above)
            yield from [init for each in family for init in self._inits if is_in(init, each.body)][:1]

    def _join(self) -> None:
        """Add to each call the wraps that run in what it runs, until nothing is new."""
        pending = [body for body, calls in self._wraps.items() if any(calls.values())]
        while pending:
            body = pending.pop()
            held = set().union(*self._wraps[body].values())
            for caller, place in self._callers[body]:
                if not held <= self._wraps[caller][place]:
                    self._wraps[caller][place] |= held
                    pending.append(caller)

    def _beside(self, body: Body, place: int, places: range) -> set[Site]:
        calls = self._wraps[body].items()
        return set().union(*(found for at, found in calls if at in places and not are_apart(body, place, 0, at, 0)))
