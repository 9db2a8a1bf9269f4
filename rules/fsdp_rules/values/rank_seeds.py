"""Wraps of models that each rank has built with a seed of its own, and that nothing makes equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Set

from fsdp_rules.ir.operations import At, Body, Call, Free, GetAttribute, Import
from fsdp_rules.project.parts import BESIDE
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.model_wraps import wraps

#: What seeds the random numbers of weights: torch's, Lightning's and transformers' functions.
_SEEDS = frozenset({"manual_seed", "manual_seed_all", "seed_everything", "set_seed"})
#: The one of them that generators have too.
_OF_GENERATORS = "manual_seed"
#: What gives all ranks the same weights, whatever the seed.
_LOADS = frozenset({"from_pretrained", "load_state_dict", "load_checkpoint"})
_SENDS = frozenset({"broadcast", "broadcast_parameters", "_broadcast_coalesced"})


def rank_seeded(machine: Interpreter, cells: Set[int]) -> tuple[dict[str, set[At]], dict[str, set[At]]]:
    """The calls that wrap such models, and those of them whose model a class of the tree makes.

    ``cells`` have what is formed of the number of a process.
    """

    def seeds_by(frame: Frame, call: Call) -> Set[bool]:
        name = called_name(frame.body, call)
        if name not in _SEEDS or not call.args or not _is_outer(frame, call, machine):
            return frozenset()
        return frozenset({frame.base + call.args[0] in cells})

    def evens(frame: Frame, call: Call) -> Set[bool]:
        name = called_name(frame.body, call)
        loads = name in _LOADS and not _is_beside(machine.store.of(frame.base + call.of))
        return frozenset({True} if loads or (name in _SENDS and not _in_arm(frame.body, call)) else ())

    order, even = CallOrder(machine, seeds_by), CallOrder(machine, evens)
    found: dict[str, set[At]] = defaultdict(set)
    built: dict[str, set[At]] = defaultdict(set)
    for frame in machine.frames:
        for place, call in enumerate(frame.body.operations):
            is_wrap = isinstance(call, Call) and any(map(wraps, machine.store.of(frame.base + call.of)))
            if not isinstance(call, Call) or not call.args or not is_wrap:
                continue
            is_even = any(before for _, _, before, _ in even.around(frame.body, place))
            if not is_even and True in order.latest(frame.body, place):
                found[frame.body.path].add(call.at)
                given = machine.store.of(frame.base + call.args[0])
                if given and all(one.kind is Kind.INSTANCE for one in given):
                    built[frame.body.path].add(call.at)
    return found, built


def called_name(body: Body, call: Call) -> str:
    """The last name by which ``call`` names what it calls; "" where it is none."""
    made = next((one for one in body.operations if getattr(one, "to", None) == call.of), None)
    return made.name or "" if isinstance(made, GetAttribute | Free | Import) else ""


def _is_outer(frame: Frame, call: Call, machine: Interpreter) -> bool:
    """Whether ``call`` runs a function of a library, and neither one of the tree nor the method of a generator."""
    callees = machine.store.of(frame.base + call.of)
    if called_name(frame.body, call) == _OF_GENERATORS:
        return bool(callees) and all(one.kind is Kind.EXTERN for one in callees)
    return all(one.body is None for one in callees)


def _is_beside(callees: Collection[Obj]) -> bool:
    """Whether ``callees`` load no weights: the method of a tokenizer, of a configuration, or the like."""
    return bool(callees) and all(
        one.kind is Kind.EXTERN and BESIDE.search(one.data.rpartition(".")[0]) is not None for one in callees
    )


def _in_arm(body: Body, call: Call) -> bool:
    """Whether some runs leave ``call`` out."""
    place = body.operations.index(call)
    return any(place in span for arms in body.arms for span in arms)
