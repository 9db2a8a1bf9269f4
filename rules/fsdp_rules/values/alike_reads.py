"""Parameters of which only what gathered and sharded ones share is read, wherever they are handed on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fsdp_rules.ir.operations import (
    At,
    Bind,
    Body,
    Call,
    Constant,
    Copy,
    Define,
    Element,
    Entered,
    Gathered,
    GetAttribute,
    GetItem,
    Narrowed,
    Operation,
    Rebound,
    SetItem,
    Unpacked,
    names_read,
)
from fsdp_rules.project.value_facts import ALIKE
from fsdp_rules.values.abstract import Kind
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.tensor_reads import PASSING, TensorReads

#: Functions that count what they are given, or ask what it is.
_COUNTS = frozenset({"builtins.len", "builtins.isinstance", "builtins.type"})
_GIVES = frozenset({"parameters", "named_parameters"})
#: What stands beside a parameter in what it is given with.
_NAMES = frozenset({Kind.NAME, Kind.TEXT, Kind.CONSTANT, Kind.NONE})
_Value = tuple[Body, int]


def alike_reads(machine: Interpreter) -> tuple[dict[str, set[At]], dict[str, set[At]]]:
    """By files, the places of expressions that give parameters of which nothing else is read, and of counts of some."""
    found: dict[str, set[At]] = defaultdict(set)
    counted: dict[str, set[At]] = defaultdict(set)
    reads = AlikeReads(TensorReads(machine))
    for body in reads.bodies:
        given = reads.given(body)
        alike = {value for value in given if reads.is_alike(body, value)} if given else ()
        if alike:
            found[body.path].update(at for at, value in body.uses if value in alike)
        if counts := reads.counts(body, given):
            counted[body.path].update(at for at, value in body.uses if value in counts)
    return found, counted


class AlikeReads:
    """Follows values through the operations that read them, into the functions of the tree that get them."""

    def __init__(self, reads: TensorReads) -> None:
        self._reads = reads
        self.bodies = reads.bodies
        self._users: dict[Body, dict[int, list[Operation]]] = {}
        self._next: dict[_Value, list[_Value] | None] = {}

    def given(self, body: Body) -> set[int]:
        """The values of ``body`` that a module's ``parameters()`` gives, or that hand these on."""
        methods = {one.to for one in body.operations if isinstance(one, GetAttribute) and one.name in _GIVES}
        return self._reads.given_by(body, frozenset(methods))

    def counts(self, body: Body, given: set[int]) -> set[int]:
        """The values of ``body`` that say how many parameters are ``given``: a length, or a sum of a number each."""
        ones = {one.to for one in body.operations if isinstance(one, Constant)}
        loops = [span for span in body.loops if any(_is_element(body.operations[at], given) for at in range(*span[:2]))]
        several = {
            one.of
            for place, one in enumerate(body.operations)
            if isinstance(one, SetItem) and one.value in ones and any(place in span for span in loops)
        }
        asked = ((given, frozenset({"builtins.len"})), (several, frozenset({"builtins.sum"})))
        return {
            one.to
            for one in body.operations
            if isinstance(one, Call)
            and any(
                not of.isdisjoint(one.args) and self._reads.is_outer(body, one.of, functions) for of, functions in asked
            )
        }

    def is_alike(self, body: Body, value: int) -> bool:
        """Whether all that is done with ``value`` is the same of gathered and sharded parameters."""
        seen, pending = set[_Value](), [(body, value)]
        while pending:
            if (one := pending.pop()) in seen:
                continue
            seen.add(one)
            if one not in self._next:
                self._next[one] = self._followed(*one)
            if (following := self._next[one]) is None:
                return False
            pending += following
        return True

    def _followed(self, body: Body, value: int) -> list[_Value] | None:
        """The values by which ``value`` is handed on; None where something else is done with it."""
        found: list[_Value] = []
        for user in self._uses(body).get(value, ()):
            match user:
                case GetAttribute(name=name) if name in ALIKE:
                    pass
                case Call() if user.of != value and (given := self._given_by(body, value, user)) is not None:
                    found += given
                case Copy(to=to) | Element(to=to) | Entered(to=to) | Narrowed(to=to) | Gathered(to=to) | Rebound(to=to):
                    found.append((body, to))
                case GetItem(to=to):
                    held = self._reads.held(body, to)
                    found += [] if held and all(one.kind in _NAMES for one in held) else [(body, to)]
                case SetItem(of=to) | Unpacked(into=to):
                    found.append((body, to))
                case Bind(name=name, scope="") if not any(name in names_read(one) for one in _inside(body)):
                    pass
                case _:
                    return None
        return found

    def _given_by(self, body: Body, value: int, call: Call) -> list[_Value] | None:
        """The values by which ``call`` hands ``value`` on, as :meth:`_followed`."""
        if self._reads.is_outer(body, call.of, _COUNTS):
            return []
        if self._reads.is_outer(body, call.of, PASSING):
            return [(body, call.to)]
        runs = self._reads.runs(body, call)
        known = all(one.kind in (Kind.FUNCTION, Kind.BOUND) for one in self._reads.callees(body, call))
        if not runs or not known or call.starred or any(run.is_generator or run.is_decorated for run, _ in runs):
            return None
        got = [entry for one, parameters in self._reads.arguments(body, call) if one == value for entry in parameters]
        return got if len(got) >= len(runs) else None

    def _uses(self, body: Body) -> dict[int, list[Operation]]:
        """For each value the operations that read it."""
        if body not in self._users:
            found: dict[int, list[Operation]] = defaultdict(list)
            for one in body.operations:
                for value in set(_read_by(one)):
                    found[value].append(one)
            self._users[body] = found
        return self._users[body]


def _read_by(one: Operation) -> Iterator[int]:
    """The values that an operation reads; the key of an entry is only compared."""
    match one:
        case Call():
            yield from (one.of, *one.args, *(value for _, value in one.keywords))
        case SetItem():
            yield one.value
        case Define():
            yield from (value for _, value in one.given)
        case Constant():
            pass
        case _:
            yield from (getattr(one, name) for name in ("of", "value") if type(getattr(one, name, None)) is int)


def _inside(body: Body) -> Iterator[Body]:
    return (one.body for one in body.operations if isinstance(one, Define))


def _is_element(one: Operation, given: set[int]) -> bool:
    return isinstance(one, Element) and one.of in given
