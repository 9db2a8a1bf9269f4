"""A whole tree without FSDP1's branches, and what is left of FSDP1 in it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import libcst as cst
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor

from fsdp_rules.fsdp1.names import FSDP_PACKAGE
from fsdp_rules.project.aliases import Aliases
from fsdp_rules.project.places import module_name
from fsdp_rules.project.walking import children, walk
from fsdp_rules.retire.choices import Choices, Parsed, Wrappers, parsed
from fsdp_rules.retire.pruning import decides, pruned
from fsdp_rules.retire.removal import without
from fsdp_rules.retire.truths import Atom, Truths
from fsdp_rules.retire.unused import Names, unused_imports, unused_variables
from fsdp_rules.verdict.finding import Level

REMOVED = "FSDP1's branch is removed, and FSDP2's is kept"
LEFT = "FSDP1's {} is used outside a branch that has an FSDP2 alternative"
LACKING = "FSDP1's branch is kept, because its alternative raises an error instead of using FSDP2"
WRITE = "write FSDP2's branch, or remove this code"
MOVE = "move it into such a branch, or remove it; without --retire, rewrite moves it once no branch is left"
NAMED = "names {}, whose branches are removed"
RENAME = "use FSDP2's value instead"
#: How often what nothing needs any more is looked for: one function may have been all that called another.
ROUNDS = 20
_IMPORTED = "FSDPModule"
#: Code of others that a project has a copy of.
COPIED = re.compile(r"(^|/)(third_party|vendor|vendored|_vendor)/")
_YAML = (".yaml", ".yml")
_ENTRY = re.compile(r"^[\s-]*(\w+)\s*:\s*[\"']?([\w.]+)[\"']?\s*(?:#.*)?$")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Note:
    """What is said of one line of a file as it was."""

    line: int
    level: Level
    message: str
    advice: str = ""


@dataclass
class Retired:
    """One file: its text now, and what is said of it."""

    text: str
    notes: list[Note] = field(default_factory=list)


def retired(files: Mapping[str, bytes], others: Callable[[], Iterable[tuple[str, bytes]]]) -> dict[str, Retired]:
    """What becomes of each of ``files`` of which anything is to be said; ``others`` are the rest of the tree,
    of which YAML files may have notes."""
    sources = [one for path, data in files.items() if (one := parsed(path, data)) is not None]
    choices = Choices(sources, Wrappers.of(sources))
    truths = choices.truths()
    found: dict[str, Retired] = {}
    for file in sources:
        if not COPIED.search(file.path) and decides(file, truths, choices):
            result = pruned(file, truths, choices)
            text = _with_import(result.module) if result.places else file.text
            notes = [Note(line, Level.SAFE, REMOVED) for line in result.places]
            notes += [Note(line, Level.MANUAL, LACKING, WRITE) for line in result.lacking]
            found[file.path] = Retired(text, notes)
    _clean(sources, found, others)
    gone = {atom.value for atom, held in truths.everywhere.items() if not held and atom.value.startswith("'")}
    for file in (one for one in sources if not COPIED.search(one.path)):
        now = found.setdefault(file.path, Retired(file.text))
        now.notes += _left(file, now.text)
        now.notes += _named(file, now.text, gone)
    for path, data in others():
        if path.endswith(_YAML) and (notes := [*_given(data.decode("utf-8", "replace"), truths)]):
            found[path] = Retired("", notes)
    return {path: one for path, one in found.items() if one.notes or one.text != files[path].decode()}


def _with_import(module: cst.Module) -> str:
    """The text of ``module``, which imports FSDP2's class where it names it."""
    code = module.code
    tree = ast.parse(code)
    bound = {
        alias.asname or alias.name for node in walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    if _IMPORTED in bound or not any(isinstance(node, ast.Name) and node.id == _IMPORTED for node in walk(tree)):
        return code
    context = CodemodContext()
    AddImportsVisitor.add_needed_import(context, FSDP_PACKAGE, _IMPORTED)
    return AddImportsVisitor(context).transform_module(module).code


def _clean(sources: list[Parsed], found: dict[str, Retired], others: Callable[[], Iterable[tuple[str, bytes]]]) -> None:
    """Take out of ``found`` what only the removed branches needed."""
    before = {file.path: file for file in sources}
    changed = {path for path, one in found.items() if one.text != before[path].text}
    if not changed:
        return
    was = {path: Names.of(file.tree) for path, file in before.items()}
    now = {**was, **{path: Names.of(ast.parse(found[path].text)) for path in changed}}
    total, imported = Counter[str](), Counter[str]()
    for names in now.values():
        total.update(names.mentions)
        imported.update(names.imported)
    for path, data in others():
        if path not in before:
            other = parsed(path, data) if path.endswith(".py") else None
            names = (
                Names(Counter(_WORD.findall(data.decode("utf-8", "replace"))))
                if other is None
                else Names.of(other.tree)
            )
            total.update(names.mentions)
            imported.update(names.imported)
    for _ in range(ROUNDS):
        released = {name for path in changed for name in was[path].mentions - now[path].mentions}
        again = False
        for path, names in list(now.items()):
            dead = names.dead(released, total)
            if not dead and path not in changed:
                continue
            one = found.setdefault(path, Retired(before[path].text))
            tree = ast.parse(one.text)
            aliases = before[path].aliases
            own = f"{module_name(path).rpartition('.')[2]}."
            exported = {name.removeprefix(own) for name, number in imported.items() if number and name.startswith(own)}
            imports = unused_imports(before[path].tree, tree, aliases, exported) if path in changed else set()
            lines = unused_variables(before[path].tree, tree, aliases) if path in changed else set()
            text = without(one.text, imports, dead, lines)
            if text == one.text:
                continue
            again, one.text, now[path] = True, text, Names.of(ast.parse(text))
            changed.add(path)
            for counted, old, new in (
                (total, names.mentions, now[path].mentions),
                (imported, names.imported, now[path].imported),
            ):
                counted.subtract(old)
                counted.update(new)
        if not again:
            return


def _left(file: Parsed, text: str) -> Iterator[Note]:
    """The uses of FSDP1's names in ``text``, one for each line."""
    tree = _tree(file, text)
    aliases = Aliases(tree, module_name(file.path), file.path.endswith("__init__.py"))
    lines = _Lines(file.text, text)
    seen: set[tuple[int, str]] = set()
    pending: list[ast.AST] = [tree]
    for node in pending:
        if not isinstance(node, ast.Name | ast.Attribute) or (known := aliases.known(node)) is None:
            pending += children(node)
        elif (node.lineno, known) not in seen:
            seen.add((node.lineno, known))
            yield Note(lines.before(node.lineno), Level.MANUAL, LEFT.format(known.lstrip(".")), MOVE)


def _named(file: Parsed, text: str, gone: set[str]) -> Iterator[Note]:
    """The texts that still name a value whose branches are gone, where a setting is given it."""
    lines = _Lines(file.text, text)
    found: dict[int, str] = {}
    for node in walk(_tree(file, text)):
        values: list[ast.expr] = []
        match node:
            case ast.keyword(arg="choices" | "default" | "backend" | "strategy", value=value):
                values = [value]
            case ast.AnnAssign(value=value, annotation=annotation):
                values = [annotation, *([value] if value is not None else [])]
            case ast.Assign(value=ast.Constant() as value):
                values = [value]
        for one in (one for value in values for one in walk(value)):
            if isinstance(one, ast.Constant) and repr(one.value) in gone:
                found[lines.before(one.lineno)] = NAMED.format(repr(one.value))
    yield from (Note(line, Level.REVIEW, message, RENAME) for line, message in found.items())


def _tree(file: Parsed, text: str) -> ast.Module:
    return file.tree if text == file.text else ast.parse(text)


def _given(text: str, truths: Truths) -> Iterator[Note]:
    """The lines of a YAML file that give a setting a value whose branches are gone."""
    for line, entry in enumerate(text.split("\n"), 1):
        found = _ENTRY.match(entry)
        if found is not None and truths.everywhere.get(Atom(found[1], repr(found[2]))) is False:
            yield Note(line, Level.REVIEW, NAMED.format(repr(found[2])), RENAME)


class _Lines:
    """Where a line of a text was before it was changed."""

    def __init__(self, before: str, after: str) -> None:
        self._known: dict[int, int] | None = None
        if before == after:
            return
        old, new = ([line.strip() for line in text.split("\n")] for text in (before, after))
        blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
        self._known = {b + k + 1: a + k + 1 for a, b, size in blocks for k in range(size)}

    def before(self, line: int) -> int:
        """The old number of ``line``, or of the next above it that was there."""
        if self._known is None:
            return line
        return next((self._known[one] for one in range(line, 0, -1) if one in self._known), 1)
