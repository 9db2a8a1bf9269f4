"""How a project uses a class besides its objects: what reads it itself, and what makes objects with other values."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from fsdp_rules.construction._plan.member_writes import field_of
from fsdp_rules.file.expressions import last_name, names_in
from fsdp_rules.file.file import File
from fsdp_rules.project.configured import Slot
from fsdp_rules.project.walking import walk

#: What is given a class and reads no value of its fields.
_NEITHER = frozenset({"cast", "field", "fields", "isinstance", "issubclass", "repr", "str", "type"})


@dataclass(frozen=True)
class ClassUses:
    """``by_itself``: the class may be asked for a field, not an object of it. ``positional``: objects get values in
    order. ``from_outside``: a library makes objects of it, from a command line or a file."""

    by_itself: bool = False
    positional: bool = False
    from_outside: bool = False


def uses_of_class(slot: Slot, file: File) -> ClassUses:
    """How the tree uses the class whose field ``slot`` is."""
    return _uses(tuple(file.project.sources.items()), slot.path, *field_of(slot))


def field_slot(node: cst.CSTNode, file: File) -> Slot | None:
    """The field of a dataclass that gets ``node`` in the class's body, None where ``node`` is no such value."""
    parent = file.parent(node)
    if not isinstance(parent, cst.AnnAssign) or file.function(node) is not None:
        return None
    owner = next((one for one in file.ancestors(parent) if isinstance(one, cst.ClassDef)), None)
    if owner is None or any(name.value == "ClassVar" for name in names_in(parent.annotation.annotation)):
        return None
    if not any("dataclass" in last_name(one.decorator) for one in owner.decorators):
        return None
    return Slot(file.path, f"{owner.name.value}.{file.code(parent.target)}", is_call=False)


@lru_cache(maxsize=16)
def _uses(sources: tuple[tuple[str, bytes], ...], path: str, owner: str, name: str) -> ClassUses:
    found: set[str] = set()
    for at, data in sources:
        for use in _of_file(data, at == path, owner, name) if owner.encode() in data else ():
            called = use.partition(" ")[2]
            is_own = called and any(f"def {called}(".encode() in one for _, one in sources)
            found.add("itself" if is_own else use.partition(" ")[0])
    # What no file is seen to make an object of is taken for what is read itself.
    return ClassUses("itself" in found or found.isdisjoint({"made", "given"}), "ordered" in found, "given" in found)


def _of_file(data: bytes, is_home: bool, owner: str, name: str) -> Iterator[str]:
    """The uses in one file: ``given F`` where the function ``F`` gets the class."""
    tree = ast.parse(data)
    names = {owner} if is_home else set()
    for node in walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {one.asname or one.name for one in node.names if one.name == owner}
    for node in walk(tree):
        asked = isinstance(node, ast.Attribute) and node.attr == name and _is_class(node.value, names, owner)
        if asked or (isinstance(node, ast.Assign | ast.Return | ast.Dict) and _has_class(node, names, owner)):
            yield "itself"
        elif isinstance(node, ast.Call):
            yield from _of_call(node, names, owner)


def _of_call(call: ast.Call, names: set[str], owner: str) -> Iterator[str]:
    if _is_class(call.func, names, owner):
        yield "made"
        if call.args:
            yield "ordered"
        return
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if called not in _NEITHER and any(_has_class(one, names, owner) or _is_class(one, names, owner) for one in given):
        yield f"given {called}"


def _has_class(node: ast.AST, names: set[str], owner: str) -> bool:
    """Whether ``node`` holds the class as a value of its own, also as an element of a tuple or a list."""
    if isinstance(node, ast.Assign | ast.Return):
        parts: list[ast.expr | None] = [node.value]
    elif isinstance(node, ast.Dict):
        parts = [*node.values]
    else:
        parts = [*node.elts] if isinstance(node, ast.Tuple | ast.List) else []
    return any(one is not None and (_is_class(one, names, owner) or _has_class(one, names, owner)) for one in parts)


def _is_class(node: ast.expr, names: set[str], owner: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == owner and isinstance(node.value, ast.Name)
    return isinstance(node, ast.Name) and node.id in names
