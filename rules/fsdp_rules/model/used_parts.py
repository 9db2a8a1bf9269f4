"""Which parts of a model a training step does not use, or not each time, as far as the class of the model shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import elements, last_name, literal_bool
from fsdp_rules.file.file import File

NN = "torch.nn."
#: Classes of torch.nn with parameters, by the beginnings of their names.
WEIGHTS = (
    "Bilinear", "Conv", "Embedding", "GRU", "LSTM", "Linear", "Multihead", "Parameter", "RNN", "Transformer",
)  # fmt: skip
#: What reaches parts by other means than their names.
DYNAMIC = frozenset(
    {"_modules", "children", "getattr", "modules", "named_children", "named_modules", "parameters", "vars"}
)
#: Functions and methods that draw random numbers.
DRAWS = frozenset({"bernoulli", "bernoulli_", "binomial", "rand", "randint", "random", "uniform", "uniform_"})


@dataclass(frozen=True)
class Use:
    """What the classes of a model show: ``unread`` are parts that no step uses.

    ``skipped`` are parts that a step skips where a random number says so.
    """

    unread: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def use_of(model: cst.BaseExpression, file: File) -> Use:
    """Which of its parts a step of ``model`` leaves out, where the file makes it of its own classes and torch's."""
    owners: list[cst.ClassDef] = []
    made = [value for value in file.objects.origins(model) if model not in file.inside(value, cst.Name)]
    for value in made[:1] if len(made) == 1 else ():
        _collect(value, file, owners)
    unread: list[str] = []
    skipped: list[str] = []
    for owner in owners:
        reads = _Reads(owner, file)
        if reads.is_plain:
            unread += [name for name, value in reads.parts if _has_weights(value, file) and reads.never(name)]
            skipped += [name for name, value in reads.parts if _may_train(value, file) and reads.by_chance(name)]
    return Use(tuple(unread), tuple(skipped))


def _collect(value: cst.CSTNode, file: File, owners: list[cst.ClassDef]) -> None:
    """Put the file's classes that ``value`` makes objects of, and those of their parts, into ``owners``."""
    for call in file.inside(value, cst.Call):
        owner = _class(call, file)
        if owner is not None and owner not in owners:
            owners.append(owner)
            for _, made in _Reads(owner, file).parts:
                _collect(made, file, owners)


def _class(call: cst.Call, file: File) -> cst.ClassDef | None:
    found = [
        node
        for node in file.nodes(cst.ClassDef)
        if isinstance(call.func, cst.Name)
        and node.name.value == call.func.value
        and [file.resolved(base.value) for base in node.bases] == ["torch.nn.Module"]
    ]
    return found[0] if len(found) == 1 else None


def _has_weights(value: cst.CSTNode, file: File) -> bool:
    calls = file.inside(value, cst.Call)
    return any(
        (file.resolved(call.func) or "").startswith(tuple(NN + name for name in WEIGHTS)) and not _is_off(call)
        for call in calls
    )


def _may_train(value: cst.CSTNode, file: File) -> bool:
    return _has_weights(value, file) or any(_class(call, file) is not None for call in file.inside(value, cst.Call))


def _is_off(call: cst.Call) -> bool:
    return any(
        entry.keyword is not None and entry.keyword.value == "requires_grad" and literal_bool(entry.value) is False
        for entry in call.args
    )


class _Reads:
    """The parts that ``__init__`` of one class makes, and where the file reads them."""

    def __init__(self, owner: cst.ClassDef, file: File) -> None:
        self.file = file
        methods = {node.name.value: node for node in owner.body.body if isinstance(node, cst.FunctionDef)}
        self.forward = methods.get("forward")
        made = methods.get("__init__")
        self.parts = list(_made(made, file)) if made is not None else []
        self.reads = [node for node in file.nodes(cst.Attribute) if not isinstance(file.parent(node), cst.AssignTarget)]
        calls = {last_name(call.func) for call in file.inside(owner, cst.Call)}
        self.is_plain = self.forward is not None and not calls & DYNAMIC

    def never(self, name: str) -> bool:
        """Whether nothing in the file reads ``name``, nor has it as a text."""
        texts = (node.value for node in self.file.nodes(cst.SimpleString))
        return not any(node.attr.value == name for node in self.reads) and not any(name in text for text in texts)

    def by_chance(self, name: str) -> bool:
        """Whether a random number that a forward draws decides whether it runs ``self.name``, or an entry of it."""
        forward = self.forward
        if forward is None:
            return False
        own = [node for node in self.reads if node.attr.value == name and forward in self.file.ancestors(node)]
        drawn = [test for test in self.file.inside(forward, cst.If) if self._is_drawn(test.test, forward)]
        return any(self._hangs_on(node, test) for test in drawn for node in own)

    def _is_drawn(self, test: cst.BaseExpression, forward: cst.FunctionDef) -> bool:
        names = {name.value for name in self.file.inside(test, cst.Name)}
        made = [
            one.value
            for one in self.file.inside(forward, cst.Assign)
            if any(target.value in names for each in one.targets for target in _named(each))
        ]
        return any(last_name(call.func) in DRAWS for one in (test, *made) for call in self.file.inside(one, cst.Call))

    def _hangs_on(self, node: cst.Attribute, test: cst.If) -> bool:
        """Whether ``test`` stands around ``node``, or leaves above it, or does either in a loop over ``node``."""
        around = [*self.file.ancestors(node)]
        if any(isinstance(loop, cst.For) and loop in self.file.ancestors(test) for loop in around):
            return True
        if test in around:
            return test.test not in around
        leaves = any(self.file.inside(test.body, kind) for kind in (cst.Return, cst.Continue))
        below = self.file.span(node).line > self.file.span(test).end_line
        return leaves and below and any(one in self.file.block(test) for one in around)


def _named(target: cst.AssignTarget) -> list[cst.Name]:
    return [target.target] if isinstance(target.target, cst.Name) else []


def _made(made: cst.FunctionDef, file: File) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Each ``self.name = value`` in ``made`` whose value a call may be in."""
    for assign in file.inside(made, cst.Assign):
        for target in assign.targets:
            for node, value in _pairs(target.target, assign.value):
                own = node.value if isinstance(node, cst.Attribute) else None
                if isinstance(own, cst.Name) and own.value == "self" and file.inside(value, cst.Call):
                    yield last_name(node), value


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """``target`` and what it gets, or each element of a tuple with its own."""
    targets, values = elements(target), elements(value)
    if targets is None or values is None or len(targets) != len(values):
        yield target, value
    else:
        yield from zip(targets, values, strict=True)
