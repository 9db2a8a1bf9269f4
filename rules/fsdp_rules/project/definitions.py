"""What a definition says by its own text: a class about its bases and fields, a function about what it sets."""

from __future__ import annotations

import ast

from fsdp_rules.project.walking import walk


def base_calls(owner: ast.ClassDef) -> frozenset[str]:
    """The methods that ``owner`` calls as those of a base."""
    if not owner.bases:
        return frozenset()
    bases = {ast.dump(base) for base in owner.bases}
    return frozenset(
        node.attr
        for node in walk(owner)
        if isinstance(node, ast.Attribute) and (is_super(node.value) or ast.dump(node.value) in bases)
    )


def is_super(node: ast.expr) -> bool:
    """Whether ``node`` is a call of ``super``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def fields(owner: ast.ClassDef) -> list[str]:
    """The names that the constructor which ``dataclass`` (or ``NamedTuple``) writes takes, in order; [] for others."""
    if any(isinstance(entry, ast.FunctionDef) and entry.name == "__init__" for entry in owner.body):
        return []
    made = any(_makes_constructor(ast.unparse(decorator)) for decorator in owner.decorator_list)
    if not is_tuple(owner) and not made:
        return []
    return [
        entry.target.id
        for entry in owner.body
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
    ]


def is_tuple(owner: ast.ClassDef) -> bool:
    """Whether the fields of ``owner`` are the elements of its objects."""
    return any(ast.unparse(base).rpartition(".")[2] == "NamedTuple" for base in owner.bases)


def named_fields(made: ast.expr) -> list[str]:
    """The fields of the class that ``made`` makes, ``namedtuple("State", "model step")``; [] for all others."""
    if not isinstance(made, ast.Call) or len(made.args) < 2:
        return []
    if ast.unparse(made.func).rpartition(".")[2] not in ("namedtuple", "NamedTuple"):
        return []
    given = made.args[1]
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        return given.value.replace(",", " ").split()
    listed = given.elts if isinstance(given, ast.List | ast.Tuple) else []
    names = [one.elts[0] if isinstance(one, ast.Tuple | ast.List) and one.elts else one for one in listed]
    return [one.value for one in names if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _makes_constructor(decorator: str) -> bool:
    name = decorator.partition("(")[0]
    return "dataclass" in name or name in ("attr.s", "attrs.define", "define", "attrs.frozen", "frozen")
