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


def switches(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether ``function`` is a context manager that sets the kind of state in one of FSDP1's two ways."""
    if not any("contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list):
        return False
    nodes = list(walk(function))
    if any(isinstance(node, ast.Attribute) and node.attr == "set_state_dict_type" for node in nodes):
        return True
    return any(
        any(isinstance(node, ast.Attribute) and node.attr == "state_dict_type" for node in walk(setting))
        for block in nodes
        for setting in _settings(block)
    )


def makes_switch(value: ast.expr) -> bool:
    """Whether ``value`` is a partial or a lambda that gives FSDP1's context for a kind of state."""
    if isinstance(value, ast.Lambda):
        made = value.body.func if isinstance(value.body, ast.Call) else None
    else:
        taken = isinstance(value, ast.Call) and value.args and ast.unparse(value.func).endswith("partial")
        made = value.args[0] if taken and isinstance(value, ast.Call) else None
    return isinstance(made, ast.Attribute) and made.attr == "state_dict_type"


def _settings(node: ast.AST) -> list[ast.expr]:
    """What ``node`` enters around a ``yield``, or for the rest of its function."""
    if isinstance(node, ast.With) and any(isinstance(inner, ast.Yield) for inner in walk(node)):
        return [item.context_expr for item in node.items]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "enter_context":
        return node.args
    return []
