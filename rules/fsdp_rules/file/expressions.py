"""Small questions about expressions that several rules ask."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.searching import find


def brief(text: str, length: int = 60) -> str:
    """``text`` on one line, cut where it is long, for a message."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def is_none(node: cst.CSTNode | None) -> bool:
    """Whether ``node`` is the literal None."""
    return isinstance(node, cst.Name) and node.value == "None"


def literal_bool(node: cst.CSTNode | None) -> bool | None:
    """The value of a literal True or False, else None."""
    if isinstance(node, cst.Name) and node.value in ("True", "False"):
        return node.value == "True"
    return None


def literal_text(node: cst.CSTNode | None) -> str | None:
    """The value of a literal text in one piece, else None."""
    text = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return text if isinstance(text, str) else None


def only_key(node: cst.CSTNode | None) -> cst.BaseExpression | None:
    """The key of ``x[key]``; None for slices, several keys and everything else."""
    index = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
    return index.value if isinstance(index, cst.Index) else None


def bind(call: cst.Call, names: tuple[str, ...]) -> dict[str, cst.BaseExpression] | None:
    """The arguments of ``call`` by name, positional ones named by ``names``; None with ``*``, ``**`` or too many.

    A dictionary that is written in the call (``**{"name": value}``) is its arguments.
    """
    found: dict[str, cst.BaseExpression] = {}
    position = 0
    for argument in call.args:
        written = dict_entries(argument.value) if argument.star == "**" else None
        if written is not None:
            found |= written
            continue
        if argument.star:
            return None
        if argument.keyword is not None:
            found[argument.keyword.value] = argument.value
        elif position < len(names):
            found[names[position]] = argument.value
            position += 1
        else:
            return None
    return found


def elements(node: cst.BaseExpression) -> list[cst.BaseExpression] | None:
    """The elements of a set, list or tuple display without ``*``."""
    if not isinstance(node, cst.Set | cst.List | cst.Tuple):
        return None
    if any(isinstance(element, cst.StarredElement) for element in node.elements):
        return None
    return [element.value for element in node.elements]


def is_partial(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is a call of functools.partial."""
    return isinstance(node, cst.Call) and file.resolved(node.func) == "functools.partial"


def names_in(node: cst.CSTNode) -> list[cst.Name]:
    """Every name inside ``node``."""
    return find(node, cst.Name)


def calls_plainly(node: cst.CSTNode | None, names: tuple[str, ...], arguments: int) -> bool:
    """Whether ``node`` is a call of one of the plain ``names`` with that many arguments."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Name)
        and node.func.value in names
        and len(node.args) == arguments
    )


def last_name(node: cst.CSTNode) -> str:
    """The name that says most about an expression: the last attribute, or the function of a call; "" if none."""
    # Of the exact type: whether a node is of a libcst class that it is not of, Python asks slowly.
    while True:
        if type(node) is cst.Name:
            return node.value
        if type(node) is cst.Attribute:
            return node.attr.value
        if type(node) is cst.Call:
            node = node.func
        elif type(node) is cst.Subscript:
            node = node.value
        elif type(node) is cst.Await:
            node = node.expression
        else:
            return ""


def is_repeatable(node: cst.BaseExpression) -> bool:
    """Whether ``node`` may be evaluated again: names, attributes, and subscripts by names and literals."""
    while isinstance(node, cst.Attribute | cst.Subscript):
        if isinstance(node, cst.Subscript):
            for element in node.slice:
                index = element.slice
                if not isinstance(index, cst.Index) or not isinstance(
                    index.value, cst.Name | cst.Integer | cst.SimpleString
                ):
                    return False
        node = node.value
    return isinstance(node, cst.Name)


@dataclass(frozen=True)
class Asked:
    """``hasattr(subject, "name")`` or ``getattr(subject, "name", ...)``."""

    function: str
    subject: cst.BaseExpression
    name: str
    has_default: bool


def attribute_of(node: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """What ``node`` reads the attribute ``name`` of, ``x.name`` or ``getattr(x, "name", ...)``; None for others."""
    if isinstance(node, cst.Attribute):
        return node.value if node.attr.value == name else None
    found = asked(node)
    return found.subject if found is not None and found.function == "getattr" and found.name == name else None


def asked(node: cst.CSTNode) -> Asked | None:
    """What ``node`` asks an object for by the text of a name, None where it is no such call."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name) or len(node.args) < 2:
        return None
    subject, name = node.args[0].value, literal_text(node.args[1].value)
    if node.func.value not in ("hasattr", "getattr") or name is None:
        return None
    return Asked(node.func.value, subject, name, len(node.args) == 3)


def named_member(node: cst.CSTNode) -> tuple[cst.BaseExpression, str] | None:
    """The owner and the attribute that ``getattr(x, "a")``, ``vars(x)["a"]`` or ``x.__dict__["a"]`` asks for."""
    if isinstance(node, cst.Call):
        question = asked(node)
        return None if question is None or question.function != "getattr" else (question.subject, question.name)
    name = literal_text(only_key(node))
    if not isinstance(node, cst.Subscript) or name is None or not name.isidentifier():
        return None
    holder = node.value
    if isinstance(holder, cst.Attribute) and holder.attr.value == "__dict__":
        return holder.value, name
    return (
        (holder.args[0].value, name) if calls_plainly(holder, ("vars",), 1) and isinstance(holder, cst.Call) else None
    )


def element_text(node: cst.CSTNode) -> str | None:
    """``a.b`` for ``a.b``, for what :func:`named_member` takes, and for an attribute of an element, ``a[0].b``.

    None for all other expressions.
    """
    parts: list[str] = []
    while True:
        if isinstance(node, cst.Attribute):
            parts.append(node.attr.value)
            node = node.value
        elif isinstance(node, cst.Subscript | cst.Call) and (member := named_member(node)) is not None:
            parts.append(member[1])
            node = member[0]
        elif isinstance(node, cst.Subscript):
            node = node.value
        else:
            return ".".join([node.value, *reversed(parts)]) if isinstance(node, cst.Name) else None


def dict_entries(node: cst.BaseExpression | None) -> dict[str, cst.BaseExpression] | None:
    """The items of a ``{...}`` or ``dict(...)`` display with literal keys, else None."""
    if isinstance(node, cst.Dict):
        found: dict[str, cst.BaseExpression] = {}
        for element in node.elements:
            key = literal_text(element.key) if isinstance(element, cst.DictElement) else None
            if key is None:
                return None
            found[key] = element.value
        return found if len(found) == len(node.elements) else None
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "dict":
        if any(argument.keyword is None or argument.star for argument in node.args):
            return None
        return {argument.keyword.value: argument.value for argument in node.args if argument.keyword is not None}
    return None


def call_of(function: cst.CSTNode, file: File) -> cst.Call | None:
    """The call of ``function``; None where it is not called."""
    call = file.parent(function)
    return call if isinstance(call, cst.Call) and call.func is function else None


def given_to(node: cst.CSTNode, file: File) -> cst.Call | None:
    """The call that is given ``node`` as an argument; None where it is none."""
    argument = file.parent(node)
    call = file.parent(argument) if isinstance(argument, cst.Arg) else None
    return call if isinstance(call, cst.Call) else None


def called_on(node: cst.CSTNode | None, *methods: str) -> cst.BaseExpression | None:
    """What ``node`` calls a method of, one of ``methods`` where there are any; None for everything else."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    return node.func.value if not methods or node.func.attr.value in methods else None


def before_methods(node: cst.BaseExpression, methods: frozenset[str]) -> cst.BaseExpression:
    """``node`` without calls of its ``methods``: ``p`` of ``p.detach().cpu()``."""
    while (inner := called_on(node, *methods)) is not None:
        node = inner
    return node


def root_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """What the attributes and elements in ``node`` are of: ``a`` of ``a.b[0].c``."""
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return node
