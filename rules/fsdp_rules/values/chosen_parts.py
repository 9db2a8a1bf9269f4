"""Lists and dictionaries of parts of which a forward runs the entries that a setting of the run names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set

from fsdp_rules.ir.operations import Body, Call, Copy, Element, GetAttribute, GetItem, SetAttribute
from fsdp_rules.values.abstract import Kind
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.wrapped_modules import parts_of

_SELF = 0
#: Classes outside of the tree whose objects hold parameters, and are no modules to this analysis.
_OF_PARAMETERS = frozenset({"torch.nn.ParameterDict", "torch.nn.ParameterList"})


def chosen_parts(machine: Interpreter) -> dict[tuple[str, int], tuple[str, ...]]:
    """The names of such attributes, by the place, a file and a line, of each wrap that a program runs with the forward.

    The key, or the end of a slice, is a parameter of the forward, or an attribute that something sets outside of
    ``__init__``: the active ones of several adapters, the task, the phase, the depth.
    """
    changed, holds = set[str](), set[str]()
    for frame in machine.frames:
        made = {one.to: one.of for one in frame.body.every(Call)}
        for one in frame.body.operations:
            if not isinstance(one, SetAttribute):
                continue
            makers = machine.store.of(frame.base + made[one.value]) if one.value in made else ()
            if any(maker.kind is Kind.EXTERN and maker.data in _OF_PARAMETERS for maker in makers):
                holds.add(one.name)
            if frame.body.name != "__init__":
                changed.add(one.name)
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    inside = {model: parts_of([model], machine) for model in machine.objects.models() if model.since is not None}
    known = set().union(*inside.values())
    for frame in machine.frames:
        body = frame.body
        if body.name != "forward" or body.kind != "function":
            continue
        reads = {one.to: one.name for one in body.every(GetAttribute) if one.of == _SELF}
        keys = {one.of: one for one in body.every(GetItem) if one.of in reads}
        for name in {reads[of] for of in keys}:
            of_name = [value for value, each in reads.items() if each == name]
            if not all(value in keys and _chooses(body, keys[value], reads, changed) for value in of_name):
                continue
            held = {one for value in of_name for one in machine.store.of(frame.base + value)}
            if name in holds or held & machine.items.modules:
                owners = known.intersection(machine.store.of(frame.base))
                for model, parts in inside.items():
                    if model.since and (owners & parts if owners else machine.may_share(body.path, model.since.path)):
                        found[model.since.place].add(name)
    return {place: tuple(sorted(names)) for place, names in found.items()}


def _chooses(body: Body, one: GetItem, reads: Mapping[int, str], changed: Set[str]) -> bool:
    """Whether ``one`` takes what a setting says: an entry, or as many as that."""
    name = reads[one.of]
    if one.key is not None:
        return _is_setting(body, one.key, name, changed)
    return any(reads.get(end) in changed or _is_setting(body, end, name, frozenset()) for end in one.bounds)


def _is_setting(body: Body, key: int, name: str, changed: Set[str]) -> bool:
    """Whether ``key``, by which an entry of ``self.name`` is taken, is none of all its keys but one that is set."""
    read, given = _origins(body, key)
    is_parameter = not read and given <= {*range(1, len(body.parameters))}
    return name not in read and (is_parameter or not read.isdisjoint(changed))


def _origins(body: Body, value: int) -> tuple[set[str], set[int]]:
    """The attributes of ``self`` that ``value`` comes of in ``body``, and the values that it is or is computed of."""
    made = defaultdict[int, list[Copy | Element | GetAttribute | GetItem | Call]](list)
    for one in body.operations:
        if isinstance(one, Copy | Element | GetAttribute | GetItem | Call):
            made[one.to].append(one)
    read, given = set[str](), set[int]()
    pending, seen = [value], set[int]()
    while pending:
        this = pending.pop()
        if this in seen:
            continue
        seen.add(this)
        if not made[this]:
            given.add(this)
        for one in made[this]:
            if isinstance(one, GetAttribute) and one.of == _SELF:
                read.add(one.name)
            elif isinstance(one, Call):
                given.add(this)
                pending += one.args
            else:
                pending.append(one.of)
    return read, given
