"""Which definition of the project a call or a name takes FSDP1's configuration from, and what that definition gives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import libcst as cst

from fsdp_rules.construction._plan.members import member_of
from fsdp_rules.file.expressions import bind
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.reads import is_read
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.project.configured import Slot
from fsdp_rules.project.places import module_name

#: Decorators of a method that is run where it is called, or read.
PLAIN = frozenset({"classmethod", "property", "staticmethod", "cached_property", "functools.cached_property"})

#: The part of a slot that is any value of a dictionary.
ENTRIES = "*"


def slot_of(node: cst.BaseExpression, file: File) -> Slot | None:
    """The slot of a call of a project's function or method, of a name from another file, or of an object's field."""
    if isinstance(node, cst.Call):
        home = home_of(node.func, file) or _member(node.func, file)
        return Slot(*home) if home is not None else None
    if isinstance(node, cst.Subscript):
        table = slot_of(node.value, file) if isinstance(node.value, cst.Name | cst.Attribute) else None
        return table._replace(part=ENTRIES) if table is not None and len(node.slice) == 1 else None
    if isinstance(node, cst.Name | cst.Attribute):
        home = home_of(node, file)
        if home is None:
            home = _member(node, file)
            return Slot(*home, is_call=False) if home is not None else None
        shared = home[0] != file.path or (isinstance(node, cst.Name) and is_precision_of_wraps(node, file))
        return Slot(*home, is_call=False) if shared else None
    return None


def is_precision_of_wraps(name: cst.Name, file: File) -> bool:
    """Whether ``name`` is a MixedPrecision of the module that several wraps are given, and nothing else reads."""
    value = file.value(name)
    if not isinstance(value, cst.Call) or file.fsdp1(value.func) != "MixedPrecision":
        return False
    owners = [file.parent(parent) for use in file.uses(name.value) if isinstance(parent := file.parent(use), cst.Arg)]
    return 1 < len(owners) == len(file.uses(name.value)) and all(
        isinstance(owner, cst.Call) and FSDP in (file.fsdp1(owner.func), owner.args and file.fsdp1(owner.args[0].value))
        for owner in owners
    )


def _member(node: cst.BaseExpression, file: File) -> tuple[str, str] | None:
    """The file of the class that declares the field or method ``node``, and the dotted name of that."""
    if not isinstance(node, cst.Attribute):
        return None
    owner = member_of(node, file).owner
    return (owner.path, f"{owner.name}.{node.attr.value}") if owner is not None else None


def home_of(node: cst.BaseExpression, file: File) -> tuple[str, str] | None:
    """The path of the file that defines what ``node`` names at its top level, and the name there; None if not seen."""
    text = dotted(node)
    if text is None or is_local(text.partition(".")[0], node, file):
        return None
    full = file.resolved(node)
    if full is None:
        given = file.references.starred.get(text, frozenset())
        if not given and _defines(text, file):
            return file.path, text
        full = next(iter(given)) if len(given) == 1 else None
    if full is None:
        return None
    module, _, name = full.rpartition(".")
    modules = file.project.names.modules.get(module, ())
    path = _by_module(tuple(file.project.sources)).get(modules[0]) if len(modules) == 1 else None
    return (path, name) if path is not None else None


@lru_cache(maxsize=4)
def _by_module(paths: tuple[str, ...]) -> dict[str, str]:
    """The path of each module."""
    return {module_name(path): path for path in paths}


def is_local(name: str, node: cst.CSTNode, file: File) -> bool:
    """Whether a function or class around ``node`` gives ``name`` a value."""
    scope = file.scope(node)
    while scope:
        if (scope, name) in file.bindings.found:
            return True
        scope = scope.rpartition(".")[0]
    return False


def _defines(name: str, file: File) -> bool:
    return definition(name, file) is not None or bool(file.bindings.found.get(("", name)))


def definition(name: str, file: File) -> cst.FunctionDef | None:
    """The one function (``Class.name``: method) called ``name`` in the file, where calling it only runs it."""
    scope, _, last = name.rpartition(".")
    found = [one for one in file.nodes(cst.FunctionDef) if one.name.value == last and file.scope(one) == scope]
    if len(found) != 1 or found[0].asynchronous or file.bindings.found.get((scope, last)):
        return None
    if not all(scope and file.code(entry.decorator) in PLAIN for entry in found[0].decorators):
        return None
    return None if any(file.function(entry) is found[0] for entry in file.inside(found[0], cst.Yield)) else found[0]


def given(slot: Slot, file: File) -> list[cst.BaseExpression]:
    """The expressions that the definition of ``slot``, in ``file``, may give; none where that is not certain."""
    function = definition(slot.name, file)
    if not slot.is_call and (function is None or not is_property(function, file)):
        return _assigned(slot, file)
    if function is None or slot.is_call == is_property(function, file) or not _always_returns(function.body):
        return []
    returns = [entry.value for entry in file.inside(function, cst.Return) if file.function(entry) is function]
    values = [_element(value, slot.part) for value in returns]
    return [value for value in values if value is not None] if None not in values else []


def is_property(function: cst.FunctionDef, file: File) -> bool:
    """Whether what ``function`` returns is read as an attribute; definitions.py asks it of the trees of ``ast``."""
    return any("property" in file.code(entry.decorator) for entry in function.decorators)


def _assigned(slot: Slot, file: File) -> list[cst.BaseExpression]:
    """What the module assigns to the name of ``slot``, or the body and the methods of a class to that field."""
    found = _given_whole(slot, file)
    if slot.part != ENTRIES:
        return found
    tables = [value for value in found if isinstance(value, cst.Dict)]
    entries = [entry for table in tables for entry in table.elements]
    if len(tables) != len(found) or not all(isinstance(entry, cst.DictElement) for entry in entries):
        return []
    return [entry.value for entry in entries]


def _given_whole(slot: Slot, file: File) -> list[cst.BaseExpression]:
    scope, _, name = slot.name.rpartition(".")
    bound = file.bindings.found.get((scope, name), [])
    if not scope:
        return _unchanged([bound[0].value], file) if len(bound) == 1 and bound[0].value is not None else []
    found: list[cst.BaseExpression] = []
    for binding in bound:
        if isinstance(binding.statement, cst.AnnAssign) and binding.statement.value is None:
            continue
        value = default_value(binding.value, file) if binding.value is not None else None
        if value is None:
            return []
        found.append(value)
    for statement, value in writes_of_self(scope, name, file):
        if not isinstance(statement, cst.Assign | cst.AnnAssign):
            return []
        found += [value] if value is not None else []
    return _unchanged(found, file)


def _unchanged(values: list[cst.BaseExpression], file: File) -> list[cst.BaseExpression]:
    """``values``, none where something changes one of these objects after it is made."""
    return [] if any(file.objects.writes(value) for value in values) else values


def default_value(value: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """What a field that a class body gives ``value`` holds; None where ``field`` says it in a way that is not read."""
    if not isinstance(value, cst.Call) or file.resolved(value.func) != "dataclasses.field":
        return value
    arguments = bind(value, ()) or {}
    factory = arguments.get("default_factory")
    if isinstance(factory, cst.Lambda):
        return factory.body
    return arguments.get("default") if factory is None else None


def writes_of_self(owner: str, name: str, file: File) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression | None]]:
    """The statements in methods of the class ``owner`` that give ``self.name`` a value, with that value."""
    for attribute in file.nodes(cst.Attribute):
        is_own = isinstance(attribute.value, cst.Name) and attribute.value.value == "self"
        if not is_own or attribute.attr.value != name or file.scope(attribute).partition(".")[0] != owner:
            continue
        parent = file.parent(attribute)
        statement = file.parent(parent) if isinstance(parent, cst.AssignTarget) else parent
        annotates = isinstance(statement, cst.AnnAssign) and statement.target is attribute
        if isinstance(statement, cst.Assign | cst.AnnAssign) and (annotates or statement is not parent):
            yield statement, statement.value
        elif not is_read(attribute, file.layout):
            yield statement or attribute, None


def _element(value: cst.BaseExpression | None, part: str) -> cst.BaseExpression | None:
    if not part:
        return None if isinstance(value, cst.Tuple) else value
    if not isinstance(value, cst.Tuple) or any(isinstance(entry, cst.StarredElement) for entry in value.elements):
        return None
    return value.elements[int(part)].value if int(part) < len(value.elements) else None


def _always_returns(body: cst.BaseSuite) -> bool:
    """Whether ``body`` never ends without a ``return`` or an error, so that nothing else is given."""
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        return isinstance(last.body[-1], cst.Return | cst.Raise)
    if isinstance(last, cst.Match):
        takes_all = last.cases and isinstance(last.cases[-1].pattern, cst.MatchAs) and last.cases[-1].guard is None
        every = takes_all and cst.ensure_type(last.cases[-1].pattern, cst.MatchAs).pattern is None
        return bool(every) and all(_always_returns(case.body) for case in last.cases)
    if isinstance(last, cst.If):
        other = last.orelse
        otherwise = _always_returns(other.body) if isinstance(other, cst.Else) else _of_elif(other)
        return otherwise and _always_returns(last.body)
    return isinstance(last, cst.With) and _always_returns(last.body)


def _of_elif(other: cst.If | None) -> bool:
    return other is not None and _always_returns(cst.IndentedBlock([other]))


def unpacked(statement: cst.CSTNode, name: str, file: File) -> tuple[cst.Name, Slot] | None:
    """The element called ``name`` of the tuple that ``statement`` unpacks a project's function's result to."""
    if not isinstance(statement, cst.Assign) or not isinstance(statement.value, cst.Call):
        return None
    slot = slot_of(statement.value, file)
    if slot is None:
        return None
    return next(((node, own) for node, own in elements_of(statement, slot) if node.value == name), None)


def elements_of(statement: cst.Assign, slot: Slot) -> Iterator[tuple[cst.Name, Slot]]:
    """The names that ``statement`` unpacks the result of ``slot`` to, each with its own slot; none if one is not."""
    target = statement.targets[0].target
    if len(statement.targets) != 1 or not isinstance(target, cst.Tuple | cst.List):
        return
    names = [entry.value for entry in target.elements if isinstance(entry.value, cst.Name)]
    told_apart = [name.value for name in names if name.value != "_"]
    if len(names) == len(target.elements) and len(told_apart) == len(set(told_apart)):
        for position, name in enumerate(names):
            yield name, slot._replace(part=str(position))
