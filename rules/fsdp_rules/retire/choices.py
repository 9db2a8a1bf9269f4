"""What a tree chooses between FSDP1 and FSDP2 by: conditions, and the keys of tables."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.project.aliases import Aliases
from fsdp_rules.project.places import module_name
from fsdp_rules.project.walking import walk
from fsdp_rules.retire.truths import Atom, Conditions, Truths, Versions, atom_of, key_of, value_of

#: How many calls are followed from a branch to what wraps a model.
DEPTH = 3
#: What one alternative of a choice wraps with.
OLD, NEW, NEITHER, BOTH = "FSDP1", "FSDP2", "", "both"
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_BLOCKS = ("body", "orelse", "finalbody")


class Parsed(NamedTuple):
    """One file of the tree."""

    path: str
    text: str
    tree: ast.Module
    aliases: Aliases


def parsed(path: str, data: bytes) -> Parsed | None:
    """The file at ``path``; None where it does not parse."""
    try:
        text = data.decode()
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return Parsed(path, text, tree, Aliases(tree, module_name(path), path.endswith("__init__.py")))


@dataclass(frozen=True)
class Wrappers:
    """The functions and classes of a tree by what they wrap models with, by the last parts of their names."""

    kinds: Mapping[str, str]

    @classmethod
    def of(cls, files: Sequence[Parsed]) -> Wrappers:
        """Those of all ``files``; a name that several have stands for all of them."""
        direct: dict[str, set[str]] = defaultdict(set)
        names: dict[str, set[str]] = defaultdict(set)
        for file in files:
            for node in walk(file.tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    direct[node.name].update(_wraps(node.body, file.aliases))
                    names[node.name] |= set(_called(node.body, file.aliases))
        for _ in range(DEPTH):
            more = {
                name: set().union(*(direct[one] for one in called if one in direct)) for name, called in names.items()
            }
            for name, kinds in more.items():
                direct[name] |= kinds
        return cls({name: _kind(kinds) for name, kinds in direct.items() if kinds})

    def kind(self, nodes: Sequence[ast.AST], aliases: Aliases) -> str:
        """What ``nodes`` wrap models with."""
        found = _wraps(nodes, aliases)
        found |= {self.kinds[name] for name in _called(nodes, aliases) if name in self.kinds}
        return _kind(found)


def _kind(found: set[str]) -> str:
    return NEITHER if not found else next(iter(found)) if len(found) == 1 else BOTH


def _wraps(nodes: Iterable[ast.AST], aliases: Aliases) -> set[str]:
    found = set()
    for node in (one for start in nodes for one in walk(start)):
        if isinstance(node, ast.Call):
            dotted = aliases.dotted(node.func) or ""
            if aliases.known(node.func) == FSDP or aliases.wraps(node):
                found.add(OLD)
            elif dotted.rpartition(".")[2] == "fully_shard" and "fsdp_compat" not in dotted:
                found.add(NEW)
    return found


def _called(nodes: Iterable[ast.AST], aliases: Aliases) -> Iterator[str]:
    """The names of functions that ``nodes`` may call: their own, imported ones, and methods of their own object."""
    for node in (one for start in nodes for one in walk(start)):
        match node:
            case ast.Name(id=name):
                yield (aliases.names.get(name) or name).rpartition(".")[2]
            case ast.Attribute(value=ast.Name(id=root), attr=name) if root in ("self", "cls") or root in aliases.names:
                yield name


@dataclass(frozen=True)
class Choices:
    """What the files of a tree choose by."""

    files: Sequence[Parsed]
    wrappers: Wrappers

    def truths(self) -> Truths:
        """What every choice says of its conditions, without those of which another place says the opposite."""
        found: dict[tuple[str, Atom], bool] = {}
        against: set[Atom] = set()
        for file in self.files:
            for arms in _chains(file.tree):
                kinds = [self.wrappers.kind(body, file.aliases) for _, body in arms]
                for (test, _), kind in zip(arms, kinds, strict=True):
                    atom = None if test is None else atom_of(test, file.aliases)
                    if atom is not None and kind in (NEW, BOTH):
                        # What FSDP2's code also runs under is no condition for FSDP1 alone.
                        against |= {atom[0]} if atom[1] else set()
                found.update(((file.path, atom), held) for atom, held in _learned(arms, kinds, file.aliases))
            found.update(((file.path, Atom(key, value)), False) for key, value in self.tables(file))
        kept = {place: held for place, held in found.items() if held or place[1] not in against}
        everywhere = {atom: held for (_, atom), held in kept.items() if atom.names_fsdp}
        first = Truths(everywhere, {place: held for place, held in kept.items() if not place[1].names_fsdp})
        versions: dict[str, frozenset[str]] = {}
        for file in self.files:
            versions.update(Versions(Conditions(file.path, file.aliases, first)).of(file.tree))
        return Truths(first.everywhere, first.by_file, versions)

    def tables(self, file: Parsed) -> Iterator[tuple[str, str]]:
        """The names of what tables are asked with, and the keys of their FSDP1 entries."""
        tables = {
            target.id: keys
            for node in walk(file.tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
            for target in node.targets
            if isinstance(target, ast.Name) and (keys := self.entries(node.value, file.aliases))
        }
        for other in self.files if tables else ():
            for node in walk(other.tree):
                if isinstance(node, ast.Subscript) and (name := key_of(node.value)) in tables:
                    key = key_of(node.slice)
                    entries = tables[name or ""]
                    yield from ((key, value) for _, value in entries if key is not None and value is not None)

    def entries(self, node: ast.Dict, aliases: Aliases) -> list[tuple[int, str | None]]:
        """The places of FSDP1's entries of a table that has FSDP2's too, and their keys."""
        kinds = [self.wrappers.kind([value], aliases) for value in node.values]
        if NEW not in kinds:
            return []
        keys = [None if key is None else value_of(key, aliases) for key in node.keys]
        return [(place, keys[place]) for place, kind in enumerate(kinds) if kind == OLD]


Arm = tuple["ast.expr | None", "Sequence[ast.AST]"]


def _chains(tree: ast.Module) -> Iterator[list[Arm]]:
    """The branches of every choice: what follows an ``if`` that leaves the block is its last."""
    for node in walk(tree):
        if isinstance(node, ast.IfExp):
            yield [(node.test, [node.body]), (None, [node.orelse])]
        for field in _BLOCKS:
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for index, one in enumerate(block):
                if isinstance(one, ast.If) and not (field == "orelse" and isinstance(node, ast.If) and len(block) == 1):
                    yield _arms(one, block[index + 1 :])


def _arms(node: ast.If, rest: list[ast.stmt]) -> list[Arm]:
    arms: list[Arm] = [(node.test, node.body)]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        arms.append((node.test, node.body))
    if node.orelse:
        arms.append((None, node.orelse))
    elif all(isinstance(body[-1], _LEAVING) for _, body in arms):
        arms.append((None, rest))
    return arms


def _learned(arms: list[Arm], kinds: list[str], aliases: Aliases) -> Iterator[tuple[Atom, bool]]:
    """What a choice says: no test for FSDP1 holds, and where FSDP1 is what is left, FSDP2's test does."""
    if OLD not in kinds or NEW not in kinds:
        return
    for (test, _), kind in zip(arms, kinds, strict=True):
        atom = None if test is None else atom_of(test, aliases)
        if atom is not None and kind == OLD:
            yield atom[0], not atom[1]
    if arms[-1][0] is None and kinds[-1] == OLD and kinds.count(NEW) == 1:
        test = arms[kinds.index(NEW)][0]
        atom = None if test is None else atom_of(test, aliases)
        if atom is not None:
            yield atom
