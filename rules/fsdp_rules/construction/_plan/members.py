"""Which class declares the field or the method that an attribute names, as far as the tree says."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File
from fsdp_rules.project.definitions import fields
from fsdp_rules.project.walking import walk

#: Annotations that say nothing about the class of an object.
OPEN = frozenset({"Any", "object"})


@dataclass(frozen=True)
class Owner:
    """A class at the top level of the file ``path``: its bases by their last names, and what it declares.

    ``members`` are its methods, its fields and the attributes that its methods give ``self``; ``types`` the names in
    the annotations of its fields; ``constructed`` the fields that its written constructor takes, in order.
    """

    path: str
    name: str
    bases: tuple[str, ...]
    members: frozenset[str]
    types: tuple[tuple[str, tuple[str, ...]], ...]
    constructed: tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """What an attribute names: the class that declares it, None where no one does or (``may_be``) several may."""

    owner: Owner | None = None
    may_be: frozenset[str] = frozenset()


def member_of(node: cst.Attribute, file: File) -> Member:
    """The class that declares what ``node`` reads."""
    name = node.attr.value
    table = _table(tuple(file.project.sources.items()))
    declaring = [owner for owners in table.values() for owner in owners if name in owner.members]
    if not declaring:
        return Member()
    found = owner_of(node.value, file)
    if found == ():
        return Member()
    if found is None:
        family = {owner.name for owner in declaring}
        return Member(declaring[0]) if len(declaring) == 1 else Member(may_be=frozenset(family))
    declared = {owner for one in found for owner in _declaring(one, name, table)}
    related = [owner for owner in declaring if owner not in declared and _is_below(owner, found, table)]
    if len(declared) == 1 and not related:
        return Member(next(iter(declared)))
    return Member(may_be=frozenset(owner.name for owner in (*declared, *related)))


def owner_of(node: cst.BaseExpression, file: File) -> tuple[Owner, ...] | None:
    """The classes that the object ``node`` may be of; () for none of the tree, None where the tree does not say."""
    table = _table(tuple(file.project.sources.items()))
    if isinstance(node, cst.Call):
        return _called(node.func, file)
    if isinstance(node, cst.Attribute):
        outer = owner_of(node.value, file)
        types = [one for owner in outer or () for name, one in owner.types if name == node.attr.value]
        return _of_names(types[0], file) if len(types) == 1 else None
    if not isinstance(node, cst.Name):
        return None
    function = file.function(node)
    home = file.scope(node).partition(".")[0]
    if function is not None and _is_self(node, function) and home in table:
        return _here(table[home], file)
    if node.value in table and (file.scope(node), node.value) not in file.bindings.found:
        return _here(table[node.value], file)
    scope = file.scope(node)
    while scope and not file.bindings.found.get((scope, node.value)):
        scope = scope.rpartition(".")[0]
    bound = file.bindings.found.get((scope, node.value), [])
    if len(bound) != 1:
        return None
    statement = bound[0].statement
    if isinstance(statement, cst.Param | cst.AnnAssign) and statement.annotation is not None:
        return _of_names(tuple(_annotated(statement.annotation.annotation)), file)
    value = bound[0].value
    return _called(value.func, file) if isinstance(value, cst.Call) else None


def classes_called(name: str, file: File) -> tuple[Owner, ...]:
    """The classes of the tree with the name ``name``."""
    return tuple(_table(tuple(file.project.sources.items())).get(name, ()))


def _called(func: cst.BaseExpression, file: File) -> tuple[Owner, ...] | None:
    """What a call of ``func`` makes, where that is a class of the tree."""
    full = file.resolved(func) or file.code(func)
    owners = classes_called(full.rpartition(".")[2], file)
    return _here(owners, file) if owners else None


def _of_names(names: tuple[str, ...], file: File) -> tuple[Owner, ...] | None:
    if not OPEN.isdisjoint(names) or not names:
        return None
    return tuple(owner for name in names for owner in _here(classes_called(name, file), file))


def _here(owners: tuple[Owner, ...] | list[Owner], file: File) -> tuple[Owner, ...]:
    """Those of ``owners`` that ``file`` defines, where it does; else all."""
    own = tuple(owner for owner in owners if owner.path == file.path)
    return own or tuple(owners)


def _is_self(node: cst.Name, function: cst.FunctionDef) -> bool:
    return node.value in ("self", "cls") or bool(
        function.params.params and function.params.params[0].name.value == node.value == "this"
    )


def _annotated(annotation: cst.BaseExpression) -> Iterator[str]:
    """The names in an annotation, those in texts included."""
    if isinstance(annotation, cst.SimpleString):
        try:
            parsed = ast.parse(str(annotation.evaluated_value), mode="eval")
        except SyntaxError:
            return
        yield from _names(parsed)
        return
    yield from (name.value for name in names_in(annotation) if name.value not in ("Optional", "Union", "None"))


def _names(annotation: ast.AST) -> Iterator[str]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name not in ("Optional", "Union"):
                yield name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


def _declaring(owner: Owner, name: str, table: Mapping[str, tuple[Owner, ...]], depth: int = 8) -> set[Owner]:
    """``owner`` where it declares ``name``, else those of its bases that do."""
    if name in owner.members:
        return {owner}
    if depth == 0:
        return set()
    above = [one for base in owner.bases for one in table.get(base, ())]
    return {found for one in above for found in _declaring(one, name, table, depth - 1)}


def _is_below(owner: Owner, found: tuple[Owner, ...], table: Mapping[str, tuple[Owner, ...]]) -> bool:
    """Whether ``owner`` inherits from one of ``found``, so that an object of that class may be of this one."""
    seen: set[Owner] = set()
    pending = {owner}
    while pending:
        seen |= pending
        pending = {up for one in pending for base in one.bases for up in table.get(base, ())} - seen
    return owner not in found and not seen.isdisjoint(found)


@lru_cache(maxsize=4)
def _table(sources: tuple[tuple[str, bytes], ...]) -> dict[str, tuple[Owner, ...]]:
    """The classes of all files by their names."""
    found: dict[str, list[Owner]] = defaultdict(list)
    for path, data in sources:
        if b"class " not in data:
            continue
        for node in ast.parse(data).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(_read(path, node))
    return {name: tuple(owners) for name, owners in found.items()}


def _read(path: str, node: ast.ClassDef) -> Owner:
    members: set[str] = set()
    types: dict[str, tuple[str, ...]] = {}
    for entry in node.body:
        if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef):
            members.add(entry.name)
            given = {one.arg: one.annotation for one in entry.args.args if one.annotation is not None}
            for inner in walk(entry):
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _of_self(inner):
                    members.add(inner.attr)
                if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Name) and inner.value.id in given:
                    named = tuple(_names(given[inner.value.id]))
                    types.update(
                        {one.attr: named for one in inner.targets if isinstance(one, ast.Attribute) and _of_self(one)}
                    )
        elif isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
            members.add(entry.target.id)
            types[entry.target.id] = tuple(_names(entry.annotation))
        elif isinstance(entry, ast.Assign):
            members.update(target.id for target in entry.targets if isinstance(target, ast.Name))
    bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
    return Owner(path, node.name, bases, frozenset(members), tuple(types.items()), tuple(fields(node)))


def _of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
