"""What a name holds where it is read: the expression that makes it, and every write of it since."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Mapping
from functools import cached_property

import libcst as cst

from fsdp_rules.file.bindings import Bindings
from fsdp_rules.file.tree import Layout
from fsdp_rules.fsdp1.names import CONFIG_NAMES, POLICY_NAMES, canonical, expand
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.object_writes import Writes
from fsdp_rules.project.project import Project
from fsdp_rules.project.variables import Position, Variables, variables_of
from fsdp_rules.project.write_facts import Write, matter

#: What makes containers that may be filled later.
CONTAINERS = frozenset({"OrderedDict", "defaultdict", "deque", "dict", "list", "set"})
DISPLAYS = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)
#: How many names a value may pass through; more are not followed.
DEPTH = 8


class Kind(enum.Enum):
    """What an expression makes: an object that code may be given to change it, one that it hardly is, another one."""

    OPEN = "open"
    POLICY = "policy"
    OTHER = "other"


class Objects:
    """The values of one file's names."""

    def __init__(self, path: str, tree: ast.Module, layout: Layout, bindings: Bindings, project: Project) -> None:
        self._path = path
        self._tree = tree
        self._layout = layout
        self._bindings = bindings
        self._project = project
        self._files = Files(path, project)
        self._writes: dict[int, list[Write]] = {}

    def value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """``node``, or the expression that says what it is where nothing changes that later (through several names)."""
        return self._followed(node, exact=True)

    def origin(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """``node``, or what made it, whatever is done to it later: for questions about what it may hold."""
        return self._followed(node, exact=False)

    def _followed(self, node: cst.BaseExpression, *, exact: bool) -> cst.BaseExpression:
        use = node
        for _ in range(DEPTH):
            found = self._bindings.binding(node)
            if found is None or found.value is None or (exact and self.changes(found.value, use)):
                return node
            node = found.value
        return node

    def values(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Everything that a plain name is assigned in its scope; [] where something else binds or changes it."""
        found = self._bindings.values(node)
        return [] if any(self.changes(value, node) for value in found if value is not node) else found

    def origins(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Everything that a plain name is assigned in its scope, whatever is done to it later; [] as in ``values``."""
        return self._bindings.values(node)

    def writes(self, made: cst.BaseExpression) -> list[Write]:
        """The writes of fields of what ``made`` makes: enough where each use of it is followed, wherever it goes."""
        place = self._expression(made)
        if place is None or not isinstance(place, DISPLAYS + (ast.Call,)):
            return []
        return Writes(self._path, self._variables, self._files, is_open=False).of(place)

    def changes(self, made: cst.BaseExpression, use: cst.BaseExpression, *, any_call: bool = False) -> list[Write]:
        """What may change the object that ``made`` makes before ``use`` reads it.

        Objects are containers and FSDP1's configurations. ``any_call``: what any call makes is one as well, of which
        only writes of its own fields count, as of policies and partials.
        """
        place, reader = self._expression(made), self._expression(use)
        if place is None or reader is None:
            return []
        kind = self._kind(place)
        is_open = kind is Kind.OPEN
        if not is_open and not (kind is Kind.POLICY or (any_call and isinstance(place, ast.Call))):
            return []
        known = self._writes.get(id(place))
        if known is None:
            known = Writes(self._path, self._variables, self._files, is_open=is_open).of(place)
            self._writes[id(place)] = known
        return list(matter(known, place, reader, self._variables))

    def _kind(self, made: ast.expr) -> Kind:
        if isinstance(made, DISPLAYS):
            return Kind.OPEN
        text = text_of(made.func) if isinstance(made, ast.Call) else None
        full = expand(text, self._files.aliases(self._path)) if text is not None else ""
        last, name = full.rpartition(".")[2], canonical(full)
        if last in CONTAINERS or name in CONFIG_NAMES:
            return Kind.OPEN
        return Kind.POLICY if name in POLICY_NAMES or last == "partial" else Kind.OTHER

    @cached_property
    def _variables(self) -> Variables:
        return Variables(self._tree)

    def _expression(self, node: cst.BaseExpression) -> ast.expr | None:
        """The node of ``ast`` at the place of ``node``."""
        if not self._layout.has(node):
            return None
        return self._variables.by_position.get(self._position(node))

    def _position(self, node: cst.CSTNode) -> Position:
        span = self._layout.span(node)
        return (
            span.line,
            self._bytes(span.line, span.column),
            span.end_line,
            self._bytes(span.end_line, span.end_column),
        )

    def _bytes(self, line: int, column: int) -> int:
        return len(self._lines[line - 1][:column].encode())

    @cached_property
    def _lines(self) -> list[str]:
        return self._layout.code.replace("\r\n", "\n").replace("\r", "\n").split("\n")


class Files:
    """The other files of a project, for the writes in them."""

    def __init__(self, path: str, project: Project) -> None:
        self._path = path
        self._project = project

    def aliases(self, path: str) -> Mapping[str, str]:
        """What each imported name of a file stands for."""
        return self._project.aliases(path)

    def others(self, path: str, name: str) -> Iterable[tuple[str, Variables]]:
        """The files besides ``path`` whose text has ``name``."""
        for other, source in self._project.sources.items():
            if other != path and name.encode() in source:
                yield other, variables_of(source)

    def home(self, dotted: str) -> tuple[str, str] | None:
        """The file that defines ``dotted``, and its name there."""
        return self._project.home(dotted)

    def variables(self, path: str) -> Variables | None:
        """The variables of a file."""
        source = self._project.sources.get(path)
        return variables_of(source) if source is not None else None

    def is_used_unseen(self, path: str, name: str) -> bool:
        """Whether a file that cannot be read imports ``name`` of the file ``path``."""
        return self._project.imports_from(path, name) and not any(True for _ in self.others(path, name))
