"""Which calls of a scope make an optimizer, by what they are given and by what is done with what they give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from fsdp_rules.ir import operations as ops

_PARAMETERS = frozenset({"parameters", "named_parameters"})
_ADDS = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
_STEP, _CLEAR, _GROUPS = "step", "zero_grad", "param_groups"


def optimizer_calls(operations: Iterable[ops.Operation]) -> frozenset[int]:
    """The values of calls that are given parameters, and give what steps and clears gradients, or has their groups."""
    every = list(operations)
    used = _used(every)
    if not used:
        return frozenset()
    makers: dict[int, list[int]] = defaultdict(list)
    for _, to, of in makings(every):
        makers[to].append(of)
    given = {one.to for one in every if isinstance(one, ops.GetAttribute) and one.name in _PARAMETERS}
    calls = (one for one in every if isinstance(one, ops.Call) and one.to in used)
    return frozenset(one.to for one in calls if any(_leads(first, given, makers) for first in _first(one)))


def _used(every: list[ops.Operation]) -> set[int]:
    """The values that are used as optimizers are, themselves or as copies."""
    uses: dict[int, set[str]] = defaultdict(set)
    steps = {one.to for one in every if isinstance(one, ops.GetAttribute) and one.name == _STEP}
    for one in every:
        if isinstance(one, ops.GetAttribute) and one.name in (_STEP, _CLEAR, _GROUPS):
            uses[one.of].add(one.name)
        elif isinstance(one, ops.Call) and one.of in steps:
            # A scaler steps it.
            for value in one.args:
                uses[value].add(_STEP)
    if not uses:
        return set()
    for one in reversed(every):
        if isinstance(one, ops.Copy | ops.Narrowed) and one.to in uses:
            uses[one.of] |= uses[one.to]
    return {value for value, names in uses.items() if _GROUPS in names or names >= {_STEP, _CLEAR}}


def made_of(one: ops.Operation) -> Iterator[tuple[int, int]]:
    """The values that ``one`` makes, or adds to, each with a value that it makes it of."""
    match one:
        case ops.Copy() | ops.Narrowed() | ops.Element() | ops.GetItem() | ops.GetAttribute():
            yield one.to, one.of
        case ops.SetItem():
            yield one.of, one.value
        case ops.Unpacked():
            yield one.into, one.of
        case ops.Call():
            for value in (one.of, *one.args, *(value for _, value in one.keywords)):
                yield one.to, value


def makings(operations: Iterable[ops.Operation]) -> Iterator[tuple[ops.Operation, int, int]]:
    """What each operation makes, or adds to, as :func:`made_of` has it.

    What a method adds to a container is also in that which has the container as an entry.
    """
    adding: dict[int, int] = {}
    entries: dict[int, int] = {}
    for one in operations:
        yield from ((one, to, of) for to, of in made_of(one))
        if isinstance(one, ops.GetAttribute) and one.name in _ADDS:
            adding[one.to] = one.of
        elif isinstance(one, ops.GetItem):
            entries[one.to] = one.of
        elif isinstance(one, ops.Call) and one.of in adding:
            into: int | None = adding[one.of]
            while into is not None:
                yield from ((one, into, value) for value in one.args)
                into = entries.get(into)


def _first(call: ops.Call) -> list[int]:
    return [*call.args[:1], *(value for name, value in call.keywords if name == "params")]


def _leads(value: int, given: set[int], makers: dict[int, list[int]]) -> bool:
    pending, seen = [value], {value}
    while pending:
        one = pending.pop()
        if one in given:
            return True
        for inner in makers.get(one, ()):
            if inner not in seen:
                seen.add(inner)
                pending.append(inner)
    return False


def used_alone(body: ops.Body, made: int) -> bool:
    """Whether the function ``body`` does no more with the object ``made`` than to call its methods, and keeps it."""
    if body.kind != "function" or body.is_generator or body.is_async:
        return False
    same, known = {made}, 0
    while known < len(same):
        known = len(same)
        same |= {one.to for one in body.operations if isinstance(one, ops.Copy | ops.Narrowed) and one.of in same}
    own = same | {one.to for one in body.operations if isinstance(one, ops.GetAttribute) and one.of in same}
    inner = set[str]().union(*(ops.names_read(one.body) for one in body.operations if isinstance(one, ops.Define)))
    for one in body.operations:
        match one:
            case ops.Call():
                given = {*one.args, *(value for _, value in one.keywords), *({one.of} & same)}
            case ops.Bind():
                given = {one.of} if one.scope or one.name in inner else set()
            case ops.SetItem() | ops.SetAttribute():
                given = {one.value}
            case ops.Return() | ops.Yield() | ops.Entered() | ops.Unpacked() | ops.Rebound():
                given = {one.of}
            case _:
                given = set()
        if not own.isdisjoint(given):
            return False
    return True
