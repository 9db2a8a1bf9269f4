"""Objects that a function has made itself, and that nothing can have wrapped since."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import before_methods
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.wrapping import assignments_of, may_wrap
from fsdp_rules.project.places import module_name
from fsdp_rules.project.project import Certainty

#: Methods that give back the module that they are called on.
SAME = frozenset({"bfloat16", "cpu", "cuda", "double", "eval", "float", "half", "requires_grad_", "to", "train"})
#: Functions of other packages that may well wrap what they are given, or make.
MAY_WRAP = re.compile(
    r"accelerat|compile|distribut|engine|fsdp|init|parallel|prepare|setup|shard|wrap(?!per)", re.IGNORECASE
)


def is_just_made(node: cst.BaseExpression, place: cst.CSTNode, file: File) -> bool:
    """Whether ``node``, or what it is a part of, is at ``place`` what a call above it in the same function has made.

    The call gives no wrapped model, every way to ``place`` passes it, and nothing in between is given the object. Of a
    part that the project follows a wrapped model to nothing is said: whoever made the object may have wrapped it.
    """
    text = dotted(node)
    if text is None or text == "self":
        return False
    parts = text.split(".")
    for length in range(len(parts), 1 if parts[0] in ("self", "cls") else 0, -1):
        if length < len(parts) and is_followed(node, file):
            return False
        owner = ".".join(parts[:length])
        above = [made for made in assignments_of(owner, file) if file.scope(made) == file.scope(node)]
        above = [made for made in above if file.span(made).line < file.span(place).line]
        if above:
            last = _assigning(above, place, file)
            return (
                bool(last)
                and all(_makes_plain(made.value, file) for made in last)
                and not _is_handed_over(owner, last[0], place, file)
            )
    return False


def _assigning(above: list[cst.Assign], place: cst.CSTNode, file: File) -> list[cst.Assign]:
    """The last of the assignments ``above`` on each way to ``place``; none where a way has none."""
    around = set(file.ancestors(place))
    last = above[-1]
    outer: cst.CSTNode = last
    for entry in file.ancestors(last):
        if isinstance(entry, cst.BaseSuite | cst.Module) and entry in around:
            break
        if isinstance(entry, cst.BaseCompoundStatement):
            outer = entry
    if outer is last:
        return [last]
    return _of_arms(outer, set(above), file) if isinstance(outer, cst.If) else []


def _of_arms(choice: cst.If, made: set[cst.Assign], file: File) -> list[cst.Assign]:
    """The last of the assignments ``made`` in each arm of ``choice`` that ends; none where an arm has none."""
    other = choice.orelse
    if other is None:
        return []
    bodies = [choice.body, *([other.body] if isinstance(other, cst.Else) else [])]
    found = _of_arms(other, made, file) if isinstance(other, cst.If) else []
    if isinstance(other, cst.If) and not found:
        return []
    for body in bodies:
        lines = [small for line in body.body if isinstance(line, cst.SimpleStatementLine) for small in line.body]
        own = [line for line in lines if isinstance(line, cst.Assign) and line in made]
        if not own and not any(isinstance(line, cst.Raise | cst.Return) for line in lines):
            return []
        inside = [one for one in made if body in set(file.ancestors(one))]
        if len(inside) > len(own):
            return []
        found += own[-1:]
    return found


def is_followed(node: cst.BaseExpression, file: File) -> bool:
    """Whether a wrapped model is followed to ``node``."""
    return value_of(node, file).model is not Certainty.NO


def _makes_plain(value: cst.BaseExpression, file: File) -> bool:
    """Whether ``value`` is a call that makes a new object, which is not wrapped."""
    value = before_methods(value, SAME)
    if not isinstance(value, cst.Call) or may_wrap(value, file) or is_followed(value, file):
        return False
    called = value.func.func if isinstance(value.func, cst.Call) else value.func
    name = dotted(called)
    if name is None or _may_give_wrapped(name, file):
        return False
    parts = (part for kind in (cst.Name, cst.Attribute) for part in file.inside(value, kind))
    return not any(dotted(part) != name and is_followed(part, file) for part in parts)


def _may_give_wrapped(name: str, file: File) -> bool:
    """Whether a call of the function ``name`` may give a wrapped model since nobody knows what it runs."""
    head, _, rest = name.partition(".")
    last = (rest or file.aliases.get(head, head)).rpartition(".")[2]
    if {last, file.aliases.get(head, head).rpartition(".")[2]} & _defined(file.module, file):
        return False
    # What a table or an object of the project gives may be anything.
    home = file.aliases.get(head, "").rpartition(".")[0].rpartition(".")[2]
    return head not in file.aliases or home in _modules(file.module, file) or MAY_WRAP.search(name) is not None


@once
def _modules(module: cst.Module, file: File) -> frozenset[str]:
    """The last names of the modules of the project that may get a wrapped model."""
    return frozenset(module_name(path).rpartition(".")[2] for path, _ in file.project.takes)


@once
def _defined(module: cst.Module, file: File) -> frozenset[str]:
    """The last names of all functions and classes of the project."""
    functions = {scope.rpartition(".")[2] for _, scope in file.project.takes}
    return frozenset(functions | set(file.project.owners.classes))


def _is_handed_over(owner: str, made: cst.Assign, place: cst.CSTNode, file: File) -> bool:
    """Whether what runs between ``made`` and ``place`` is given what ``owner`` names, or an object that has it."""
    function = file.function(made)
    last = file.span(place).line
    for around in file.ancestors(place):
        if around is function or around in set(file.ancestors(made)):
            break
        if isinstance(around, cst.For | cst.While):
            last = file.span(around).end_line + 1
    first = file.span(made).line
    names = {owner} | {owner[:index] for index, letter in enumerate(owner) if letter == "."}
    return any(first < line < last and text in names for line, text in _given(function or file.module, file))


@once
def _given(whole: cst.CSTNode, file: File) -> tuple[tuple[int, str], ...]:
    """What each call in ``whole`` is given by name, or called on as ``self``, with its line."""
    return tuple(_named(whole, file))


def _named(whole: cst.CSTNode, file: File) -> Iterator[tuple[int, str]]:
    for call in file.inside(whole, cst.Call):
        line = file.span(call).line
        for argument in call.args:
            if (text := dotted(argument.value)) is not None:
                yield line, text
        called_on = call.func.value if isinstance(call.func, cst.Attribute) else None
        if isinstance(called_on, cst.Name) and called_on.value in ("self", "cls"):
            yield line, called_on.value
