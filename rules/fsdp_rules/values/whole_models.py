"""Models of which each forward uses all parameters, by what the forwards of their classes do with each part."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

from fsdp_rules.ir.operations import ANY, At, Body, Call, GetAttribute, names_read
from fsdp_rules.project.texts import NO_MODEL
from fsdp_rules.values.abstract import Kind, Obj, Site
from fsdp_rules.values.frames import Class
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.library import table
from fsdp_rules.values.result_parts import NO_RESULT, NOTHING, Flow, Tokens, joined, met
from fsdp_rules.values.tensor_reads import NO_GRADIENT, TensorReads
from fsdp_rules.values.wrapped_modules import parts_of

_MODULE = frozenset({"torch.nn.Module", "torch.nn.modules.module.Module"})
#: Of these a step uses some parts by its data, or it is not known what they hold.
_BY_DATA = ("torch.nn.AdaptiveLogSoftmaxWithLoss", "torch.nn.ParameterDict", "torch.nn.utils.", "torch.nn.parallel.")
#: Those with no others than these.
_LAYER = re.compile(r"torch\.nn\.(Linear|Conv\w*|LayerNorm|BatchNorm\w*|GroupNorm)")
_WEIGHTS: Tokens = frozenset({"weight", "bias"})
_ATTENTION = "torch.nn.MultiheadAttention"
#: Base classes outside of the tree that are none of modules.
_NO_MODULE = re.compile(r"(abc|builtins|collections|dataclasses|enum|pydantic|typing)\.")
#: Those without parameters, and what is no module.
_WEIGHTLESS = re.compile(
    r"(?!torch\.nn\.).*|torch\.nn\.(Leaky|R|[SC]?E|[GS][EiG]?)?(ReLU6?|LU)|torch\.nn\.(Hard|Log|Soft|Tanh)\w*|torch\.nn\."
    r"(\w*(Dropout|Loss|Pad|Pool|Shuffle|Unshuffle)\w*|Mish|Sigmoid|Threshold|Flatten|Unflatten|Identity|Upsample\w*)"
)
_UNKNOWN = re.compile(r"torch\.(load|compile|hub|jit|distributed|export)\b|builtins\.(getattr|next)$")
#: What gives a module parts that no assignment shows, or turns gradients off.
_HIDDEN = frozenset({"register_parameter", "_parameters", "_modules", "__dict__", "vars", "set_grad_enabled"})
#: Functions that compute of all that they are given, but for these.
_COMPUTES = ("torch.", "operator.", "builtins.", "math.", "einops.")
_PLAIN = NO_GRADIENT | {
    *("builtins.next", "builtins.iter", "builtins.getattr", "builtins.dict", "operator.Compare", "operator.Invert"),
    *("torch.argsort", "torch.bernoulli", "torch.bucketize", "torch.multinomial", "torch.nonzero", "torch.tensor"),
}


def whole_models(machine: Interpreter) -> frozenset[tuple[str, int]]:
    """The wraps, by file and line, of which each forward of each model uses all parameters for each result."""
    if not machine.is_complete or machine.is_bounded or not _run_forwards(machine):
        return frozenset()
    search = _Search(machine)
    found: dict[tuple[str, int], bool] = defaultdict(lambda: True)
    entered = search.entered()
    for model in machine.objects.models():
        if model.since is not None:
            found[model.since.place] &= model.since not in entered and search.is_whole(model)
    return frozenset(place for place, is_whole in found.items() if is_whole)


def _run_forwards(machine: Interpreter) -> bool:
    """Run the forwards of all modules inside of models, which nothing else may ask for; False where that is cut."""
    for one in parts_of(machine.objects.models(), machine):
        if one.kind is not Kind.INSTANCE or not isinstance(one.data[0], Class):
            continue
        found = machine.store.cells()
        machine.attributes.of_class(one.data[0], "forward", one, found)
        for method in [each for each in machine.store.of(found) if each.kind is Kind.BOUND]:
            if method.data[1].kind is Kind.FUNCTION and not machine.calls.is_called(method.data[1]):
                machine.calls.run_alone(method.data[1])
    is_complete = machine.store.run()
    machine.items.settle()
    machine.attributes.settle()
    return is_complete and machine.store.run()


class _Search:
    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._reads = TensorReads(machine)
        self._makers: dict[tuple[str, At], set[Obj]] = defaultdict(set)
        #: What a method is called on that gives back the same module.
        self._same: dict[tuple[str, At], set[Obj]] = defaultdict(set)
        for body in self._reads.bodies:
            got = {one.to: one for one in body.every(GetAttribute)}
            for one in body.operations:
                if not isinstance(one, Call):
                    continue
                method = got.get(one.of)
                if method is not None and table("model").get(method.name) == "first":
                    self._same[body.path, one.at] |= self._reads.held(body, method.of)
                else:
                    self._makers[body.path, one.at] |= self._reads.held(body, one.of)
        self._known: dict[Obj, bool] = {}
        self._flows = cache(lambda body: Flow(body, self._reads.held, self.given, self.is_first))
        self._running: set[Body] = set()

    def entered(self) -> set[Site | None]:
        """The wraps of models of which something runs a part by itself."""
        calls = ((body, one) for body in self._reads.bodies for one in body.every(Call))
        return {each.since for body, one in calls for each in self._reads.callees(body, one) if each.kind is Kind.PART}

    def is_whole(self, one: Obj) -> bool:
        """Whether a call of the module ``one`` uses all its parameters."""
        if one not in self._known:
            self._known[one] = True
            self._known[one] = self._uses_all(one)
        return self._known[one]

    def _uses_all(self, one: Obj) -> bool:
        if one.kind is Kind.MODEL:
            # A name that is bound to its own wrap alone says nothing of what is wrapped.
            inner = [each for each in self._inside(self._machine.attributes.field(one, "(inner)")) if each is not one]
            return bool(inner) and all(map(self.is_whole, inner))
        if one in self._machine.items.modules:
            return self._are_whole(self._machine.items.all(one))
        if one.kind is Kind.INSTANCE and isinstance(one.data[0], Class):
            return self._is_used(one, one.data[0])
        names = self.made_by(one)
        return bool(names) and all(name.startswith("torch.nn.") and not name.startswith(_BY_DATA) for name in names)

    def _are_whole(self, cell: int) -> bool:
        held = self._inside(cell)
        return bool(held) and all(map(self.is_whole, held))

    def _inside(self, cell: int) -> list[Obj]:
        """What is in ``cell``, but for methods that a base class outside of the tree may have by that name."""
        return [one for one in self._machine.store.of(cell) if one.kind is not Kind.METHOD]

    def made_by(self, one: Obj, depth: int = 3) -> set[str]:
        """The functions outside of the tree of which ``one`` is a result; empty where something else may be."""
        key = one.data if one.kind is Kind.OPEN else None
        if not isinstance(key, tuple) or len(key) < 2 or not depth:
            return set()
        names = [{each.data} if each.kind is Kind.EXTERN else set() for each in self._makers[key[:2]]]
        names += [self.made_by(each, depth - 1) for each in self._same[key[:2]]]
        return set().union(*names) if all(names) else set()

    def _is_used(self, one: Obj, cls: Class) -> bool:
        family = (cls, *cls.above)
        forward = self._reads.forward_of(one)
        hidden = any(_HIDDEN & names_read(each.body) for each in family)
        outer = self._outer_bases(cls) - _MODULE
        if hidden or not all(map(_LAYER.fullmatch, outer)) or (forward is None and not outer):
            return False
        used = self.result(forward) if forward is not None else _WEIGHTS
        if outer and not used >= _WEIGHTS:
            return False
        owners = (one, *map(self._machine.attributes.any_of, family))
        held: dict[str, set[Obj]] = defaultdict(set)
        for owner in owners:
            for name in self._machine.attributes.names(owner):
                held[name].update(self._machine.store.of(self._machine.attributes.field(owner, name)))
        held.pop("training", None)
        told = [self._attributes(each.body) for each in family]
        called, read = (set().union(*names) for names in zip(*told, strict=True))
        if not all(self._wraps_one_of(each, held) for each in held.pop(ANY, ())):
            return False
        for name, values in held.items():
            may_run = name in called or not (name in read or NO_MODEL.search(name))
            parts = [each for each in values if self._is_part(each, may_run)]
            if not all(self._is_given(name, each, used) and self.is_whole(each) for each in parts):
                return False
        return True

    def _outer_bases(self, cls: Class) -> set[str]:
        """The base classes that are not of the tree, "" for one that is not known."""
        cells = [cell for each in (cls, *cls.above) for cell in each.bases]
        bases = {base for cell in cells for base in self._machine.store.of(cell) if base.kind is not Kind.CLASS}
        return {base.data if base.kind is Kind.EXTERN else "" for base in bases}

    def _is_given(self, name: str, part: Obj, used: Tokens) -> bool:
        """Whether the attribute ``name``, or each entry of the dictionary that it is, is among ``used``."""
        items = self._machine.items
        if name in used or part not in items.modules or part not in items.dictionaries:
            return name in used
        keys = [key for key in items.keys(part) if key != ANY or self._machine.store.of(items.cell(part, key))]
        return bool(keys) and all(
            f"{name}.{key}" in used
            or any(self._is_given(f"{name}.{key}", one, used) for one in self._inside(items.cell(part, key)))
            for key in keys
        )

    def _wraps_one_of(self, one: Obj, held: Mapping[str, set[Obj]]) -> bool:
        """Whether ``one``, put into a module under a name that is not known, is what that has there, wrapped."""
        inner = self._inside(self._machine.attributes.field(one, "(inner)")) if one.kind is Kind.MODEL else []
        return bool(inner) and all(each is one or any(each in values for values in held.values()) for each in inner)

    def _attributes(self, cls: Body) -> tuple[set[str], set[str]]:
        """The attributes that the methods of ``cls`` call, and those that they read."""
        called: set[str] = set()
        read: set[str] = set()
        for body in self._reads.bodies:
            if body.path == cls.path and cls.at[:2] <= body.at[:2] and body.at[2:] <= cls.at[2:]:
                got = {one.to: one.name for one in body.every(GetAttribute) if one.of == 0}
                read.update(got.values())
                called.update(got[one.of] for one in body.every(Call) if one.of in got)
        return called, read

    def _is_part(self, one: Obj, is_called: bool) -> bool:
        """Whether ``one`` may have parameters: of what is not known, where it is called, or nothing reads it."""
        if one.kind is Kind.MODEL or one in self._machine.items.modules:
            return True
        if one.kind is Kind.INSTANCE:
            cls = one.data[0]
            bases = self._outer_bases(cls) if isinstance(cls, Class) else set()
            return self._reads.forward_of(one) is not None or not all(map(_NO_MODULE.match, bases))
        if one.kind is Kind.CONTAINER:
            return any(self._is_part(each, is_called) for each in self._machine.store.of(self._machine.items.all(one)))
        if one.kind is not Kind.OPEN:
            return one.kind in (Kind.PARAMETER, Kind.PART, Kind.OTHER_WRAPPER)
        names = self.made_by(one)
        if not names or not _begins(names, _COMPUTES) or any(map(_UNKNOWN.match, names)):
            return is_called
        return any(name.startswith(_BY_DATA) or not _WEIGHTLESS.fullmatch(name) for name in names)

    def result(self, body: Body) -> Tokens:
        """What each result of ``body`` that a gradient may come to is surely computed of."""
        if body in self._running:
            return NOTHING
        self._running.add(body)
        found = self._flows(body).result()
        self._running.discard(body)
        return found

    def given(self, flow: Flow, call: Call) -> Tokens | None:
        """What the result of ``call`` is surely computed of; None where that is not known yet."""
        every = joined(map(flow.of, (*call.args, *(value for _, value in call.keywords))))
        target = self._reads.called(flow.body, call)
        part, method = flow.part(target), flow.made(target, GetAttribute)
        own = method is not None and flow.is_own(method.of)
        is_tensor = method is not None and not own and flow.part(method.of) is None and method.name not in NO_RESULT
        other: Tokens | None = every
        called: Tokens | None = frozenset({part}) if part is not None else NOTHING
        if part is None:
            other = joined((every, flow.of(method.of))) if method is not None and is_tensor else NOTHING
            called = flow.of(target) if method is None else NOTHING
        ways = [self._given_by(one, flow, call, own, every, other) for one in self._reads.callees(flow.body, call)]
        return joined((met(ways or [other]), called))

    def is_first(self, body: Body, call: Call) -> bool:
        """Whether ``call`` is one of an attention, whose weights no gradient of its output layer flows to."""
        return any(_ATTENTION in self.made_by(one) for one in self._reads.callees(body, call))

    def _given_by(
        self, one: Obj, flow: Flow, call: Call, own: bool, every: Tokens | None, other: Tokens | None
    ) -> Tokens | None:
        """As :meth:`given`, where ``one`` is what ``call`` runs; ``other`` where it is a method of a tensor."""
        if one.kind is Kind.EXTERN:
            return every if one.data not in _PLAIN and _begins({one.data}, _COMPUTES) else NOTHING
        ways = []
        for run, _ in self._reads.run_by(one):
            tokens = self.result(run)
            given = self._reads.arguments(flow.body, call)
            flowing = (flow.of(value) for value, to in given if any(at in tokens for body, at in to if body is run))
            names = frozenset(each for each in tokens if isinstance(each, str)) if own else NOTHING
            ways.append(joined((names, *flowing)))
        return met(ways) if ways else other


def _begins(names: Iterable[str], beginnings: tuple[str, ...]) -> bool:
    return all(name.startswith(beginnings) for name in names)
