"""What the forward of a module gives may be the very output of one of its parts: of which, each class says here."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.walking import walk

#: A module of torch that gives what the last of its parts gives.
CHAIN = "Sequential"
#: Methods of modules that give the module.
PASSES_ON = frozenset({"apply", "bfloat16", "cuda", "eval", "float", "half", "requires_grad_", "to", "train"})
#: How many modules inside each other are looked into.
DEPTH = 6


@dataclass(frozen=True)
class Ending:
    """A part that a forward may end with: its attribute, and the dotted classes of it and of what ends it.

    ``made`` is empty where the class is not known; the attribute is empty where the part is not.
    """

    attribute: str
    made: tuple[str, ...]


#: What a class that says nothing of its forward ends with.
UNKNOWN = (Ending("", ()),)


def endings_of(sources: Iterable[bytes]) -> dict[str, tuple[tuple[Ending, ...], ...]]:
    """The endings of all classes with a forward in some files, by the last names of the classes."""
    found: dict[str, list[tuple[Ending, ...]]] = defaultdict(list)
    for data in sources:
        if b"def forward" not in data:
            continue
        try:
            nodes = [*walk(ast.parse(data))]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(endings_in(node))
    return {name: tuple(known) for name, known in found.items()}


def endings_in(owner: ast.ClassDef) -> tuple[Ending, ...]:
    """The parts with whose output the forward of ``owner`` may end; none where it computes its output itself."""
    forward = next((one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == "forward"), None)
    if forward is None:
        return UNKNOWN
    return tuple(dict.fromkeys(found for value in _returned(forward) for found in _parts(value, owner)))


def chain_of(made: ast.expr | None) -> tuple[str, ...]:
    """The dotted class that ``made`` builds, and those of what ends it where it is a chain; empty where unknown."""
    found: list[str] = []
    while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in PASSES_ON:
        made = made.func.value
    while isinstance(made, ast.Call) and (text := text_of(made.func)) is not None:
        found.append(text)
        if text.rpartition(".")[2] != CHAIN:
            return tuple(found)
        made = made.args[-1] if made.args else None
    return ()


def may_end_in(
    made: tuple[str, ...],
    classes: Mapping[str, Iterable[tuple[Ending, ...]]],
    units: frozenset[str] | None,
    wrapped: frozenset[str],
    depth: int = DEPTH,
) -> bool:
    """Whether a module of the classes ``made``, from the outside in, may give the output of a unit inside of it.

    ``classes`` are those of the tree by their last names, ``units`` the names of classes that are units (None: any may
    be), ``wrapped`` the attributes that are.
    """
    if not made or depth == 0:
        return True
    inner = [one.rpartition(".")[2] for one in made[1:]]
    if inner and (units is None or not units.isdisjoint(inner)):
        return True
    last = made[-1].rpartition(".")[2]
    if last not in classes:
        # Modules of torch that are no chains compute their output by functions.
        return not made[-1].startswith(("nn.", "torch.nn.")) and last not in LEAVES
    for endings in classes[last]:
        for part in endings:
            names = {one.rpartition(".")[2] for one in part.made[:1]}
            is_unit = units is None or part.attribute in wrapped or not units.isdisjoint(names)
            if is_unit or may_end_in(part.made, classes, units, wrapped, depth - 1):
                return True
    return False


#: Modules of torch by the names that are imported by themselves.
LEAVES = frozenset({"Linear", "LayerNorm", "Conv1d", "Conv2d", "Conv3d", "Embedding", "Dropout", "Softmax", "ReLU"})


def _parts(value: ast.expr, owner: ast.ClassDef) -> Iterator[Ending]:
    """The parts of ``owner`` whose output ``value``, which its forward gives, may be."""
    if isinstance(value, ast.Tuple | ast.List | ast.Dict):
        for one in value.values if isinstance(value, ast.Dict) else value.elts:
            yield from _parts(one, owner)
    elif isinstance(value, ast.IfExp):
        yield from _parts(value.body, owner)
        yield from _parts(value.orelse, owner)
    elif isinstance(value, ast.Name | ast.Attribute | ast.Subscript | ast.Starred | ast.Await):
        yield Ending("", ())
    elif isinstance(value, ast.Call):
        text = text_of(value.func)
        own = text.removeprefix("self.") if text is not None else None
        if text is None or own == text:
            # A function or a method of a tensor makes a tensor of its own; what a loop runs over is called by a name.
            plain = isinstance(value.func, ast.Attribute) and not isinstance(value.func.value, ast.Subscript)
            if not plain:
                yield Ending("", ())
            return
        made: list[ast.expr | None] = [*_assigned(owner, text)]
        yield from (Ending(own or "", chain_of(one)) for one in made or [None])


def _returned(forward: ast.FunctionDef) -> Iterator[ast.expr]:
    """What ``forward`` gives, names followed to what they were given last."""
    for node in walk(forward):
        if isinstance(node, ast.Return) and node.value is not None:
            parts = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value]
            if isinstance(node.value, ast.Dict):
                parts = node.value.values
            for part in parts:
                yield from _followed(part, forward, node.lineno)


def _followed(value: ast.expr, forward: ast.FunctionDef, line: int) -> Iterator[ast.expr]:
    """``value``, or what the assignments that may be the last ones above ``line`` give it, where it is a name."""
    if not isinstance(value, ast.Name):
        yield value
        return
    found = False
    for statement in reversed([one for one in forward.body if one.lineno < line]):
        for node in walk(statement):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = {one.id for target in targets if target for one in walk(target) if isinstance(one, ast.Name)}
            given = getattr(node, "value", None)
            if value.id in names and isinstance(given, ast.expr):
                found = True
                # What is added in place is a tensor of its own to the hooks.
                yield ast.BinOp(value, ast.Add(), given) if isinstance(node, ast.AugAssign) else given
        if found and isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
            return
    # What comes in is no output of a unit inside.
    if not found and value.id not in {entry.arg for entry in forward.args.args}:
        yield value


def _assigned(owner: ast.ClassDef, text: str) -> Iterator[ast.expr]:
    """What the methods of ``owner`` assign to ``text``, in tuples one by one."""
    for node in walk(owner):
        for target, value in assigned(node):
            if text_of(target) == text:
                yield value


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of the assignment ``node``, those in tuples one by one, with what they are given."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
