"""How often operations read what a value is, as far as gradients flow back through them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache

from fsdp_rules.ir.operations import Body, Call, Copy, Element, GetAttribute, GetItem, Narrowed, Span
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.interpreter import Interpreter

#: What is asked of a tensor by its attributes and methods without a gradient.
ASKED = frozenset(
    {"shape", "size", "dtype", "device", "ndim", "dim", "numel", "stride", "layout", "is_cuda", "requires_grad"}
    | {"detach", "data", "item", "tolist", "numpy", "grad_fn", "is_leaf", "is_contiguous", "is_floating_point"}
    | {"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "argmax", "argmin"}
)
#: Functions outside of the tree through which no gradient flows.
NO_GRADIENT = frozenset(
    {"operator.Is", "operator.Compare", "operator.Not", "torch.is_tensor", "torch.zeros_like", "torch.ones_like"}
    | {"torch.empty_like", "torch.rand_like", "torch.randn_like", "torch.argmax", "builtins.len", "builtins.isinstance"}
    | {"builtins.type", "builtins.print", "builtins.bool", "builtins.hasattr", "builtins.callable"}
)
#: Functions that give what they are given, or a container with its elements.
PASSING = frozenset(
    f"builtins.{name}"
    for name in ("dict", "enumerate", "filter", "iter", "list", "next", "reversed", "set", "tuple", "zip")
)
#: Functions that give a container with the elements of another.
_COPIES = frozenset({"builtins.tuple", "builtins.list"})
#: Methods that put their arguments into a container.
PUTS = frozenset({"append", "add", "insert", "extend", "appendleft"})
_CHECKPOINT = "torch.utils.checkpoint.checkpoint"


class TensorReads:
    """The reads of values in the bodies of functions."""

    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._frames: dict[Body, list[Frame]] = defaultdict(list)
        for frame in machine.frames:
            self._frames[frame.body].append(frame)
        self._forwards = [body for body in self._frames if body.name == "forward" and body.kind == "function"]
        self.forward_of = cache(self._forward_of)
        self.held = cache(self._held)
        self.readers = cache(self._readers)
        self.times = cache(self._times)
        self._running: set[tuple[Body, int]] = set()

    @property
    def bodies(self) -> Collection[Body]:
        """All that run."""
        return self._frames.keys()

    def _held(self, body: Body, value: int) -> set[Obj]:
        """All that a value may be, in any frame."""
        return {one for frame in self._frames[body] for one in self._machine.store.of(frame.base + value)}

    def _readers(self, body: Body) -> dict[int, list[tuple[int, int]]]:
        """For each value the operations, by their places, that read it, and how often each does."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        methods = {one.to: one.name for one in body.every(GetAttribute)}
        for place, one in enumerate(body.operations):
            match one:
                case GetAttribute(name=name) if name not in ASKED:
                    found[one.of].append((place, 1))
                case GetItem() | Element():
                    found[one.of].append((place, 1))
                case Call() if methods.get(one.of) not in PUTS and not (
                    self._has_no_gradient(body, one) or self.copies(body, one)
                ):
                    for value, times in self.given(body, one).items():
                        found[value].append((place, times))
        return found

    def is_outer(self, body: Body, value: int, names: frozenset[str]) -> bool:
        """Whether a value surely is one of the functions outside of the tree called ``names``."""
        held = self.held(body, value)
        return bool(held) and all(one.kind is Kind.EXTERN and one.data in names for one in held)

    def given_by(self, body: Body, methods: frozenset[int]) -> set[int]:
        """The values that calls of ``methods`` give, and those that hand these on."""
        found: set[int] = set()
        for one in body.operations if methods else ():
            match one:
                case Call(to=to, of=of) if of in methods:
                    found.add(to)
                case Call(to=to, of=of) if not found.isdisjoint(one.args) and self.is_outer(body, of, PASSING):
                    found.add(to)
                case Copy(to=to, of=of) if of in found:
                    found.add(to)
        return found

    def _has_no_gradient(self, body: Body, call: Call) -> bool:
        return any(one.kind is Kind.EXTERN and one.data in NO_GRADIENT for one in self.held(body, call.of))

    def copies(self, body: Body, call: Call) -> bool:
        """Whether ``call`` gives a container with the elements of its argument."""
        return any(one.kind is Kind.EXTERN and one.data in _COPIES for one in self.held(body, call.of))

    def given(self, body: Body, call: Call) -> dict[int, int]:
        """How often what ``call`` runs reads each of its arguments."""
        times: dict[int, int] = defaultdict(int)
        for value, parameters in self.arguments(body, call):
            times[value] += max((self.times(run, at) for run, at in parameters), default=1)
        return times

    def arguments(self, body: Body, call: Call) -> Iterator[tuple[int, list[tuple[Body, int]]]]:
        """The arguments of ``call``, each with the parameters of bodies that get it."""
        runs = self.runs(body, call)
        args = call.args[1:] if self._is_checkpoint(body, call) else call.args
        for place, value in enumerate(args):
            yield value, [(run, first + place) for run, first in runs if first + place < len(run.parameters)]
        for name, value in call.keywords:
            yield value, [(run, run.parameters.index(name)) for run, _ in runs if name in run.parameters]

    def _is_checkpoint(self, body: Body, call: Call) -> bool:
        return bool(call.args) and any(one.data == _CHECKPOINT for one in self.held(body, call.of))

    def callees(self, body: Body, call: Call) -> set[Obj]:
        """What ``call`` runs, in a checkpoint or not."""
        return self.held(body, self.called(body, call))

    def called(self, body: Body, call: Call) -> int:
        """The value that ``call`` runs, in a checkpoint or not."""
        return call.args[0] if self._is_checkpoint(body, call) else call.of

    def runs(self, body: Body, call: Call) -> list[tuple[Body, int]]:
        """The bodies that ``call`` runs, and at which of their parameters the arguments begin."""
        return [run for one in self.callees(body, call) for run in self.run_by(one)]

    def run_by(self, one: Obj) -> list[tuple[Body, int]]:
        """As :meth:`runs`, of one object."""
        if one.kind is Kind.FUNCTION:
            return [(one.data.body, 0)]
        if one.kind is Kind.BOUND and one.data[1].kind is Kind.FUNCTION:
            return [(one.data[1].data.body, 1)]
        return [(forward, 1) for each in self.modules(one) if (forward := self.forward_of(each)) is not None]

    def modules(self, one: Obj) -> list[Obj]:
        """The objects of classes of the tree that a module is, or has inside."""
        if one.kind is Kind.MODEL:
            inner = self._machine.store.of(self._machine.attributes.field(one, "(inner)"))
            return [each for each in inner if each.kind is Kind.INSTANCE]
        return [one] if one.kind is Kind.INSTANCE else []

    def _forward_of(self, one: Obj) -> Body | None:
        """The ``forward`` of an object of a class of the tree."""
        cls = one.data[0]
        family = (cls, *cls.above) if isinstance(cls, Class) else ()
        methods = (body for each in family for body in self._forwards if is_in(body, each.body))
        return next(methods, None)

    def _times(self, body: Body, value: int) -> int:
        """How often one run of ``body`` reads ``value``."""
        if (body, value) in self._running:
            return 1
        self._running.add((body, value))
        kept: list[tuple[int, int]] = []
        total = 0
        readers, names = self.readers(body), _names(body, value)
        for place, times, name in sorted((*reader, one) for one in names for reader in readers.get(one, ())):
            if not any(are_apart(body, *other, place, name) for other in kept):
                kept.append((place, name))
                total += 2 * times if is_again(body, name, place) else times
        self._running.discard((body, value))
        return total


def _names(body: Body, value: int) -> set[int]:
    """``value``, and what may be the same by another number."""
    same = {value}
    for one in body.operations:
        if isinstance(one, Copy | Narrowed) and one.of in same:
            same.add(one.to)
    return same


def is_in(body: Body, cls: Body) -> bool:
    """Whether ``body`` is a method of the class ``cls``, or inside of one."""
    return body.path == cls.path and cls.at.line <= body.at.line and body.at.end_line <= cls.at.end_line


def are_apart(body: Body, first: int, name: int, second: int, other: int) -> bool:
    """Whether no run reads a value by ``name`` at the operation ``first`` and then by ``other`` at ``second``."""
    for arms in body.arms:
        own = next((arm for arm in arms if first in arm), None)
        if own is None or second in own:
            continue
        if own.leaves or any(second in arm for arm in arms) or (name != other and _gives(body, own, other)):
            return True
    return False


def is_again(body: Body, value: int, call: int) -> bool:
    """Whether the operation at ``call`` may run several times on what ``value`` is once."""
    changes = [place for place, one in enumerate(body.operations) if getattr(one, "to", None) == value]
    return any(call in loop and not any(_changes_in(loop, place, body) for place in changes) for loop in body.loops)


def _changes_in(loop: Span, place: int, body: Body) -> bool:
    """Whether an operation is one of ``loop``, or says after it what the next round begins with."""
    after = body.operations[loop.end : place + 1]
    return place in loop or (place >= loop.end and all(isinstance(one, Copy) for one in after))


def _gives(body: Body, arm: Span, name: int) -> bool:
    """Whether ``name`` is something that ``arm`` makes after it."""
    of = {one.of for one in body.operations[arm.end :] if isinstance(one, Copy) and one.to == name}
    return any(getattr(one, "to", None) in of for one in body.operations[arm.begin : arm.end])
