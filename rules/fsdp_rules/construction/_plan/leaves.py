"""The values that an expression can have at run time, as far as its file says: where each of them is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.slots import is_local, slot_of, unpacked
from fsdp_rules.file.callers import default_of
from fsdp_rules.file.expressions import is_none, names_in
from fsdp_rules.file.file import File
from fsdp_rules.file.reaching import definitions
from fsdp_rules.project.configured import Contract, Slot
from fsdp_rules.project.places import module_name

#: What a value may pass through on its way; more is not followed.
DEPTH = 8
#: Functions that print what they are given.
PRINTERS = frozenset({"print", "info", "debug", "warning", "log", "str", "repr", "format"})


@dataclass(frozen=True)
class Leaf:
    """One value. ``eager``: it is evaluated although another one may be chosen, as in a dictionary's display.

    ``slot``: it comes from this definition, of which the project knows what it gives. ``early``: it is evaluated
    outside of the function that shards, where no process group may exist.
    """

    node: cst.BaseExpression
    eager: bool = False
    slot: Slot | None = None
    early: bool = False

    def contract(self, file: File) -> Contract | None:
        """What the project knows of the value, where another definition gives it."""
        return file.project.configured.get(self.slot) if self.slot is not None else None


@dataclass(frozen=True)
class Found:
    """All values, the names that carry them, and why they are not all known ("" where they are)."""

    leaves: tuple[Leaf, ...] = ()
    carriers: tuple[cst.Name, ...] = ()
    unknown: str = ""

    @property
    def nodes(self) -> tuple[cst.BaseExpression, ...]:
        """The expressions of all values."""
        return tuple(leaf.node for leaf in self.leaves)


def given_elsewhere(found: Found, kind: str, file: File) -> Leaf | None:
    """The one value of ``found``, where a definition gives it that is rewritten to ``kind`` with all its uses."""
    leaf = found.leaves[0] if len(found.leaves) == 1 and not found.unknown else None
    contract = leaf.contract(file) if leaf is not None else None
    return leaf if contract is not None and contract.kind == kind and contract.converted else None


def leaves(value: cst.BaseExpression, file: File) -> Found:
    """Every value that ``value`` can have, through names, branches, conditional expressions and dictionaries."""
    found: list[Leaf] = []
    carriers: list[cst.Name] = []
    unknown = _follow(value, file, found, carriers, eager=False, depth=DEPTH)
    unique = {leaf.node: leaf for leaf in found}
    return Found(tuple(unique.values()), tuple(dict.fromkeys(carriers)), unknown)


def _follow(
    value: cst.BaseExpression,
    file: File,
    found: list[Leaf],
    carriers: list[cst.Name],
    *,
    eager: bool,
    depth: int,
) -> str:
    """Add what ``value`` can be to ``found``; the part of it that is not known, "" if all is."""
    if depth == 0:
        return file.code(value)
    slot = slot_of(value, file)
    if slot is not None and file.project.configured.get(slot) is not None:
        found.append(Leaf(value, eager, slot))
        return ""
    if isinstance(value, cst.IfExp):
        arms = (value.body, value.orelse)
        return next(
            (text for arm in arms if (text := _follow(arm, file, found, carriers, eager=eager, depth=depth - 1))), ""
        )
    if (looked_up := _looked_up(value)) is not None:
        table, others = looked_up
        entries = _entries(table, file, carriers)
        if entries is None:
            found.append(Leaf(value, eager))
            return ""
        return next(
            (
                text
                for entry in (*entries, *others)
                if (text := _follow(entry, file, found, carriers, eager=True, depth=depth - 1))
            ),
            "",
        )
    if isinstance(value, cst.Name) and value.value not in ("None", "True", "False"):
        reaching = definitions(value, file)
        if reaching is None:
            found.append(Leaf(value, eager))
            return ""
        assigned = [entry for entry in reaching if not isinstance(entry, cst.Param)]
        if not assigned:
            parameter = next((entry for entry in reaching if isinstance(entry, cst.Param)), None)
            default = default_of(value, parameter, file) if parameter is not None else None
            if default is None:
                found.append(Leaf(value, eager))
                return ""
            carriers.append(value)
            return _follow(default, file, found, carriers, eager=eager, depth=depth - 1)
        parts = [entry for entry in assigned if isinstance(entry, cst.Assign) and not _is_whole(entry, value.value)]
        taken = [known for entry in parts if (known := _taken_apart(entry, value.value, eager, file)) is not None]
        if len(taken) < len(parts):
            found.append(Leaf(value, eager))
            return ""
        found += taken
        carriers.append(value)
        # A parameter that no branch replaces is what FSDP1 refuses, a name for instance, or a value that it takes.
        for statement in (entry for entry in assigned if entry not in parts):
            if not isinstance(statement, cst.Assign | cst.AnnAssign) or statement.value is None:
                return value.value
            if file.objects.changes(statement.value, value, any_call=True):
                # At run time alone the name has the value that the call gets.
                found.append(Leaf(value, eager))
                return ""
            if text := _follow(statement.value, file, found, carriers, eager=eager, depth=depth - 1):
                return text
        return ""
    found.append(Leaf(value, eager))
    return ""


def _taken_apart(statement: cst.CSTNode, name: str, eager: bool, file: File) -> Leaf | None:
    """What ``statement`` gives ``name`` of a tuple whose elements the project knows."""
    found = unpacked(statement, name, file)
    known = found is not None and file.project.configured.get(found[1]) is not None
    return Leaf(found[0], eager, found[1]) if found is not None and known else None


#: What is printed with a name in it.
_HANDS_ON = cst.Arg | cst.FormattedStringExpression | cst.FormattedString | cst.ConcatenatedString


def _is_whole(statement: cst.Assign, name: str) -> bool:
    """Whether ``statement`` gives ``name`` its whole value, not an element of it."""
    return any(isinstance(target.target, cst.Name) and target.target.value == name for target in statement.targets)


def _looked_up(value: cst.CSTNode) -> tuple[cst.BaseExpression, tuple[cst.BaseExpression, ...]] | None:
    """The table of ``table[key]`` and of ``table.get(key, other)``, with what another key gives."""
    if isinstance(value, cst.Subscript):
        return value.value, ()
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute) or value.func.attr.value != "get":
        return None
    plain = all(not argument.star and argument.keyword is None for argument in value.args)
    return (value.func.value, (value.args[1].value,)) if plain and len(value.args) == 2 else None


def _is_looked_up(use: cst.Name, file: File) -> bool:
    parent = file.parent(use)
    if isinstance(parent, cst.Attribute):
        parent = file.parent(parent)
    return parent is not None and (found := _looked_up(parent)) is not None and found[0] is use


def _entries(table: cst.BaseExpression, file: File, carriers: list[cst.Name]) -> list[cst.BaseExpression] | None:
    """The values of a dictionary that is looked up, by its display or the one name that is assigned it."""
    if isinstance(table, cst.Name):
        binding = file.binding(table)
        if binding is None or binding.value is None or not isinstance(binding.value, cst.Dict):
            return None
        if not all(_is_looked_up(use, file) for use in file.uses(table.value)):
            return None
        carriers.append(table)
        table = binding.value
    if not isinstance(table, cst.Dict):
        return None
    if not all(isinstance(entry, cst.DictElement) for entry in table.elements):
        return None
    return [entry.value for entry in table.elements]


def readers(found: Found, file: File) -> Iterator[cst.Name]:
    """Other reads of the variables that carry a value, those that only print it or read an earlier value aside."""
    known = set(found.carriers)
    leaving = set(found.nodes)
    for scope, name in {(file.bindings.scope_of(carrier), carrier.value) for carrier in found.carriers}:
        carried = {
            statement
            for carrier in found.carriers
            if carrier.value == name
            for statement in definitions(carrier, file) or ()
        }
        # What a parameter is given is none of the values, where statements replace it.
        carried = {entry for entry in carried if not isinstance(entry, cst.Param)} or carried
        for use in file.uses(name):
            if use in known or use in leaving or not is_same(use, scope, file) or is_printed(use, file):
                continue
            if leaving.isdisjoint(file.ancestors(use)) and not _reads_earlier(use, carried, file):
                yield use


def is_shared(found: Found, file: File) -> bool:
    """Whether other code reads a variable that carries one of the values, in this file or in one that imports it."""
    return next(readers(found, file), None) is not None or is_imported(found, file)


def is_imported(found: Found, file: File) -> bool:
    """Whether another file imports a variable that carries one of the values, or reads it from the module."""
    names = {carrier.value for carrier in found.carriers if not is_local(carrier.value, carrier, file)}
    return any(file.project.imports_from(file.path, name) or _is_behind_a_dot_elsewhere(name, file) for name in names)


def _is_behind_a_dot_elsewhere(name: str, file: File) -> bool:
    """Whether a file that speaks of FSDP1, and of this module, has ``name`` behind a dot."""
    module = module_name(file.path).rpartition(".")[2].encode()
    return any(
        path != file.path and f".{name}".encode() in data and module in data
        for path, data in file.project.sources.items()
    )


def is_same(use: cst.Name, scope: str, file: File) -> bool:
    """Whether ``use`` reads the variable of the function ``scope``, in that function or in one inside it."""
    inner = file.scope(use)
    while inner != scope:
        if (scope and not inner.startswith(f"{scope}.")) or (inner, use.value) in file.bindings.found:
            return False
        inner = inner.rpartition(".")[0]
    return True


def _reads_earlier(use: cst.Name, carried: set[cst.CSTNode], file: File) -> bool:
    """Whether ``use`` stands above all statements in ``carried``, or in branches that none of them reaches."""
    if any(isinstance(entry, cst.For | cst.While) for statement in carried for entry in file.ancestors(statement)):
        return False
    reached = definitions(use, file)
    return reached is not None and carried.isdisjoint(reached)


def is_printed(use: cst.Name, file: File) -> bool:
    """Whether ``use`` is only printed, as a whole."""
    for ancestor in file.ancestors(use):
        if isinstance(ancestor, cst.Call):
            named = names_in(ancestor.func)
            return bool(named) and named[-1].value in PRINTERS
        if not isinstance(ancestor, _HANDS_ON):
            return False
    return False


def is_asked(use: cst.Name, file: File) -> bool:
    """Whether the code around ``use`` only asks whether it is None, or false."""
    parent = file.parent(use)
    if isinstance(parent, cst.Comparison):
        (target, *more) = parent.comparisons
        is_none_test = isinstance(target.operator, cst.Is | cst.IsNot) and is_none(target.comparator)
        return parent.left is use and not more and is_none_test
    if isinstance(parent, cst.If | cst.IfExp):
        return parent.test is use
    return isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)
