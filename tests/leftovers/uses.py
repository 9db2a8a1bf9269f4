"""Every use of FSDP1 in a tree of sources, found by a scan of its own: nothing here knows the rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.leftovers.made import Owners
from tests.leftovers.names import ATTRIBUTES, METHODS, OTHERS, PACKAGE, SHARED_METHODS, STRINGS, VALUES, fsdp1
from tests.leftovers.resolve import Names, text_of

#: What people call an object with settings.
CONFIGURATIONS = re.compile(r"arg|conf|cfg|opt|param|setting|fsdp|self", re.IGNORECASE)
#: Calls that make a sharded model of their first argument, by the last part of their names.
SHARDING = frozenset({"fully_shard", "shard", "FullyShardedDataParallel", "FSDP"})


@dataclass(frozen=True, order=True)
class Use:
    """One use of FSDP1. ``first`` to ``last`` are the lines of its statement (of a compound one: of its head).

    ``kind``: ``name``, ``value`` (a configuration), ``import`` (of a name that the file does not use), ``method``,
    ``attribute``, ``string`` or ``module`` (``.module`` of a model that the function shards).
    """

    path: str
    line: int
    first: int
    last: int
    kind: str
    what: str


def uses(sources: Mapping[str, str]) -> list[Use]:
    """The uses of FSDP1 in ``sources`` (path → text); files that do not parse are left out."""
    trees: dict[str, ast.Module] = {}
    for path, text in sources.items():
        try:
            trees[path] = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
    names = Names(trees)
    owners = Owners(trees, names)
    return sorted({use for path, tree in trees.items() for use in _Scan(path, tree, names, owners).run()})


class _Scan:
    def __init__(self, path: str, tree: ast.Module, names: Names, owners: Owners) -> None:
        self.path = path
        self.tree = tree
        self.names = names
        self.owners = owners
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.sharded = self._sharded()

    def run(self) -> Iterator[Use]:
        """All uses of the file."""
        yield from self._imports()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield from self._reference(node)
            if isinstance(node, ast.Attribute):
                yield from self._attribute(node)
            elif isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from self._string(node, node.value)

    def _use(self, node: ast.expr | ast.stmt, kind: str, what: str) -> Use:
        statement: ast.AST = node
        while not isinstance(statement, ast.stmt):
            statement = self.parents[statement]
        body = getattr(statement, "body", None)
        last = statement.end_lineno or statement.lineno
        if body:
            last = max(statement.lineno, body[0].lineno - 1)
        decorators = getattr(statement, "decorator_list", ())
        first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        return Use(self.path, node.lineno, first, max(last, node.lineno), kind, what)

    def _known(self, text: str) -> str | None:
        found = sorted(known for full in self.names.meanings(self.path, text) if (known := fsdp1(full)) is not None)
        return found[0] if found else None

    def _imports(self) -> Iterator[Use]:
        read = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                name = alias.asname or alias.name
                if name in read or self.names.imported(self.path, name):
                    continue
                if node.level == 0 and (known := fsdp1(f"{node.module}.{alias.name}")) is not None:
                    yield self._use(node, "import", known)

    def _reference(self, node: ast.Name | ast.Attribute) -> Iterator[Use]:
        parent = self.parents[node]
        if isinstance(parent, ast.Attribute):
            return
        text = text_of(node)
        known = self._known(text) if text is not None else None
        if known is not None:
            place: ast.expr | ast.stmt = node
            if text is not None and self.names.is_starred(self.path, text):
                place = self._star() or node
            is_value = VALUES.fullmatch(known) and not _asks_a_model(parent)
            yield self._use(place, "value" if is_value else "name", known)

    def _star(self) -> ast.ImportFrom | None:
        """The star import of FSDP1's package: which names it brings is decided there."""
        return next(
            (
                node
                for node in ast.walk(self.tree)
                if isinstance(node, ast.ImportFrom) and node.module == PACKAGE and node.names[0].name == "*"
            ),
            None,
        )

    def _attribute(self, node: ast.Attribute) -> Iterator[Use]:
        text = text_of(node)
        if text is not None and self._known(text) is not None:
            return
        is_own = text_of(node.value) in ("self", "cls")
        # Behind hasattr, the question is the use: where the answer is no, this does not run.
        if node.attr in ATTRIBUTES and isinstance(node.ctx, ast.Load) and not is_own and not self._is_asked_for(node):
            yield self._use(node, "attribute", node.attr)
        if node.attr == "module" and isinstance(node.ctx, ast.Load):
            owner = text_of(node.value)
            if owner is not None and (self._scope(node), owner) in self.sharded:
                yield self._use(node, "module", f"{owner}.module")

    def _call(self, node: ast.Call) -> Iterator[Use]:
        if isinstance(node.func, ast.Attribute):
            method, owner = node.func.attr, _last_name(node.func.value)
            text = text_of(node.func)
            meanings = self.names.meanings(self.path, text) if text is not None else frozenset()
            if any(fsdp1(full) for full in meanings) or any(full.startswith("fsdp_compat.") for full in meanings):
                return
            if method in SHARED_METHODS and (OTHERS.search(owner) or any("." in full for full in meanings)):
                return
            if self.owners.is_another(self.path, self._scope(node), node.func.value, method):
                return
            if method in METHODS | SHARED_METHODS and owner not in ("self", "cls", "super"):
                yield self._use(node, "method", method)
        elif isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and len(node.args) > 1:
            name = node.args[1]
            if not isinstance(name, ast.Constant) or OTHERS.search(_last_name(node.args[0])):
                return
            if name.value in METHODS | SHARED_METHODS | ATTRIBUTES and not self._has_default(node):
                yield self._use(node, "string", str(name.value))

    def _is_asked_for(self, node: ast.Attribute) -> bool:
        question = f"hasattr({ast.unparse(node.value)}, {node.attr!r})"
        child: ast.AST = node
        while (parent := self.parents.get(child)) is not None and not isinstance(child, ast.FunctionDef | ast.Lambda):
            tests: list[ast.expr] = []
            if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
                answered = parent.body if isinstance(parent.body, list) else [parent.body]
                tests = _conjuncts(parent.test) if child in answered else []
            elif isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And) and isinstance(child, ast.expr):
                tests = parent.values[: parent.values.index(child)]
            if any(ast.unparse(test) == question for test in tests):
                return True
            child = parent
        return False

    def _has_default(self, call: ast.Call) -> bool:
        """Whether what FSDP2 lacks is asked for with something to take its place."""
        return isinstance(call.func, ast.Name) and call.func.id == "getattr" and len(call.args) > 2

    def _string(self, node: ast.Constant, value: str) -> Iterator[Use]:
        parent = self.parents[node]
        if isinstance(parent, ast.Compare) and STRINGS.search(value):
            if ("FSDP" not in value and "Fully" not in value) or "__name__" in ast.unparse(parent):
                yield self._use(node, "string", value)
        elif isinstance(parent, ast.arg | ast.AnnAssign | ast.FunctionDef):
            for full in (value, value.partition("[")[2].rstrip("]")):
                if full.isidentifier() and (known := self._known(full)) is not None:
                    yield self._use(node, "name", known)

    def _scope(self, node: ast.AST) -> ast.AST:
        current = self.parents.get(node)
        while current is not None and not isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef):
            current = self.parents.get(current)
        return current if current is not None else self.tree

    def _sharded(self) -> set[tuple[ast.AST, str]]:
        """The names that a function shards, whatever else happens to them there."""
        found: set[tuple[ast.AST, str]] = set()
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Call) or (text_of(node.func) or "").rpartition(".")[2] not in SHARDING:
                continue
            given = node.args[0] if node.args else None
            found.update((self._scope(node), text) for text in [text_of(given) if given is not None else None] if text)
            parent = self.parents[node]
            if isinstance(parent, ast.Assign):
                found.update(
                    (self._scope(node), text) for target in parent.targets if (text := text_of(target)) is not None
                )
        return found


def _asks_a_model(node: ast.AST) -> bool:
    """Whether ``node`` compares ``model.sharding_strategy``; of a configuration, it would be a value like others."""
    return isinstance(node, ast.Compare) and any(
        isinstance(side, ast.Attribute)
        and side.attr == "sharding_strategy"
        and not CONFIGURATIONS.search(_last_name(side.value))
        for side in (node.left, *node.comparators)
    )


def _conjuncts(test: ast.expr) -> list[ast.expr]:
    """What is all true where ``test`` is."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _last_name(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript | ast.Call | ast.Await):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
