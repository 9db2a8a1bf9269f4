"""Which kinds of state an expression may name, through the tables and names that it is taken from."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.searching import find
from fsdp_rules.state._governing.state_settings import Kind


def kind_of(node: cst.BaseExpression, file: File) -> Kind:
    """The kind of state that ``node`` names."""
    value = file.value(node)
    known = file.fsdp1(value) or _by_a_star(value, file)
    for kind in (Kind.FULL, Kind.SHARDED, Kind.LOCAL):
        if known == f"StateDictType.{kind.value}":
            return kind
    return Kind.UNKNOWN


def _by_a_star(node: cst.BaseExpression, file: File) -> str:
    """``node`` as it is written, where only a star import can be what gives the file its first name."""
    text = dotted(node) or ""
    root = text.partition(".")[0]
    named = any(name == root for _, name in file.bindings.found) or root in file.aliases
    named = named or any(one.name.value == root for one in file.nodes(cst.ClassDef))
    stars = any(isinstance(one.names, cst.ImportStar) for one in file.nodes(cst.ImportFrom))
    return text if stars and not named else ""


def may_be_local(node: cst.BaseExpression, file: File) -> bool:
    """Whether what ``node`` is taken from, through all names on the way, has LOCAL_STATE_DICT in it."""
    waiting: list[cst.CSTNode] = [node]
    seen: set[cst.CSTNode] = set()
    while waiting:
        one = waiting.pop()
        if any(kind_of(part, file) is Kind.LOCAL for part in find(one, cst.Attribute)):
            return True
        for name in names_in(one):
            added = [value for value in _given(name, file) if value not in seen]
            seen.update(added)
            waiting += added
    return False


def _given(name: cst.Name, file: File) -> list[cst.BaseExpression]:
    """The values of all assignments that bind ``name`` where it is read, unpacking ones too."""
    scope = file.scope(name)
    while True:
        found = file.bindings.found.get((scope, name.value), [])
        if found or not scope:
            break
        scope = scope.rpartition(".")[0]
    statements = [binding.statement for binding in found]
    return [one.value for one in statements if isinstance(one, cst.Assign | cst.AnnAssign) and one.value is not None]


def entries(node: cst.BaseExpression, file: File) -> list[Kind]:
    """The kinds of state in the dictionary that ``node`` looks one up in, where that is a display in the file."""
    table = file.value(node.value) if isinstance(node, cst.Subscript) else node
    values = [entry.value for entry in table.elements] if isinstance(table, cst.Dict) else []
    return [kind_of(value, file) for value in values]
