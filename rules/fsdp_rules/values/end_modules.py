"""The modules of torch that a model runs before its first part of the tree's own, and those after the last."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Set

from fsdp_rules.ir.operations import At, Call, GetAttribute, names_read
from fsdp_rules.project.value_facts import Ends
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.interpreter import Interpreter

_SELF = 0
_EMBEDDING = re.compile(r"torch\.nn\.Embedding")
#: Modules with nothing but parameters, which one call of each forward reads.
_LAYER = re.compile(r"torch\.nn\.(Embedding|LayerNorm|Linear|RMSNorm)")
#: What a root has beside them that a unit of its own would not hold.
_WEIGHTLESS = re.compile(r"torch\.nn\.(Dropout|Identity|\w*Loss)|(?!torch\.nn\.).*")
#: What gives a module parts that no assignment shows.
_HIDDEN = frozenset({"register_parameter", "register_module", "add_module", "_parameters", "_modules", "__dict__"})


def end_modules(machine: Interpreter, whole: Set[tuple[str, int]]) -> Mapping[tuple[str, int], Ends]:
    """By the file and line of each wrap of ``whole``: what of its models can be units beside their blocks.

    Nothing but one forward calls these modules, and nothing reads them in another way, as what ties weights does.
    """
    if not whole:
        return {}
    search = _Search(machine)
    found: dict[tuple[str, int], set[Ends]] = defaultdict(set)
    for model in machine.objects.models():
        if model.since is not None and model.since.place in whole:
            inner = machine.store.of(machine.attributes.field(model, "(inner)"))
            found[model.since.place] |= {search.ends(one) for one in inner if one is not model}
    return {place: ends.pop() for place, ends in found.items() if len(ends) == 1 and ends != {Ends()}}


class _Search:
    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._makers: dict[tuple[str, At], set[Obj]] = defaultdict(set)
        self._reads: dict[str, list[tuple[Frame, GetAttribute]]] = defaultdict(list)
        for frame in machine.frames:
            for one in frame.body.operations:
                if isinstance(one, Call):
                    self._makers[frame.body.path, one.at].update(machine.store.of(frame.base + one.of))
                elif isinstance(one, GetAttribute):
                    self._reads[one.name].append((frame, one))

    def ends(self, model: Obj) -> Ends:
        """Those of one object of a class of the tree."""
        if model.kind is not Kind.INSTANCE or not isinstance(model.data[0], Class) or model.data[0].above:
            return Ends()
        cls = model.data[0]
        if any(_HIDDEN & names_read(frame.body) for frame in self._machine.frames if frame.body is cls.body):
            return Ends()
        made = {name: self._made(model, name) for name in self._machine.attributes.names(model)}
        run = {name: list(self._run(model, name)) for name in made}
        layers = {name for name, by in made.items() if run[name] and by and all(map(_LAYER.fullmatch, by))}
        every = [one for name in made for one in self._held(model, name)]
        shared = {name for name in layers if any(every.count(one) > 1 for one in self._held(model, name))}
        layers -= shared | {name for name in layers if not self._is_only_run(model, name)}
        inner = [place for name in made if self._is_own(model, name) for place in run[name]]
        if not inner:
            return Ends()
        first, last = min(inner), max(inner)
        before = [name for name in layers if max(run[name]) < first and all(map(_EMBEDDING.fullmatch, made[name]))]
        after = [name for name in layers if min(run[name]) > last]
        rest = made.keys() - {*before, *after, "training"}
        left = any(self._has_weights(model, name, made[name]) for name in rest if not self._is_own(model, name))
        before.sort(key=lambda name: min(run[name]))
        after.sort(key=lambda name: min(run[name]))
        return Ends(tuple(before), tuple(after), left)

    def _held(self, model: Obj, name: str) -> Collection[Obj]:
        return self._machine.store.of(self._machine.attributes.field(model, name))

    def _made(self, model: Obj, name: str) -> set[str]:
        """The functions outside of the tree of which an attribute is the result; "" where it may be another."""
        found: set[str] = set()
        for one in self._held(model, name):
            key = one.data if one.kind is Kind.OPEN and isinstance(one.data, tuple) and len(one.data) > 1 else None
            makers = self._makers[key[0], key[1]] if key is not None and isinstance(key[1], At) else set[Obj]()
            found |= {maker.data if maker.kind is Kind.EXTERN else "" for maker in makers} or {""}
        return found

    def _is_own(self, model: Obj, name: str) -> bool:
        """Whether an attribute is a module of the tree, or a container of such."""
        items, held = self._machine.items, self._held(model, name)
        inside = [each for one in held if one in items.modules for each in self._machine.store.of(items.all(one))]
        return any(one.kind is Kind.INSTANCE and isinstance(one.data[0], Class) for one in (*held, *inside))

    def _has_weights(self, model: Obj, name: str, made: set[str]) -> bool:
        """Whether an attribute may have parameters."""
        kinds = {one.kind for one in self._held(model, name)}
        return bool(kinds - {Kind.CONSTANT, Kind.NONE, Kind.TEXT}) and not (
            made and all(by and _WEIGHTLESS.fullmatch(by) for by in made)
        )

    def _run(self, model: Obj, name: str) -> Iterator[int]:
        """Where the forward of the model's class runs the attribute, or else reads it."""
        for frame, one in self._reads[name]:
            if self._is_forward(frame, model) and one.of == _SELF:
                calls = [each for each in frame.body.every(Call) if each.of == one.to]
                yield frame.body.operations.index(calls[0] if calls else one)

    def _is_forward(self, frame: Frame, model: Obj) -> bool:
        cls = frame.owner
        return frame.body.name == "forward" and cls is not None and cls.data is model.data[0]

    def _is_only_run(self, model: Obj, name: str) -> bool:
        """Whether all that is done with the attribute of a model is to call it in the forward."""
        for frame, one in self._reads[name]:
            if self._is_forward(frame, model) and one.of == _SELF:
                called = [each for each in frame.body.every(Call) if each.of == one.to]
                used = sum(self._uses(each, one.to) for each in frame.body.operations)
                if len(called) != 1 or used != 1:
                    return False
            elif not all(
                of.kind is Kind.INSTANCE and of.data[0] is not model.data[0]
                for of in self._machine.store.of(frame.base + one.of) or {model}
            ):
                return False
        return True

    def _uses(self, operation: object, value: int) -> bool:
        """Whether an operation has a value in its fields, but for what it gives."""
        fields = operation._asdict() if isinstance(operation, tuple) and hasattr(operation, "_asdict") else {}
        flat = [one for name, field in fields.items() if name not in ("to", "at") for one in _flat(field)]
        return value in flat


def _flat(field: object) -> Iterator[object]:
    if isinstance(field, tuple):
        for one in field:
            yield from _flat(one)
    else:
        yield field
