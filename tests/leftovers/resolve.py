"""Which full dotted names a name in a file may stand for: imports wherever they stand, and re-exports of the tree."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from tests.leftovers.names import PACKAGE, STARRED

#: How many re-exports are followed behind each other.
REACH = 6


def text_of(node: ast.AST) -> str | None:
    """``a.b.c`` for a name or a chain of attributes, else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def module_of(path: str) -> str:
    """The dotted name of the file at ``path``, counted from where the tree starts."""
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


class Names:
    """The names of all files of a tree. A name that several imports bind may stand for each of them."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._bound: dict[str, dict[str, set[str]]] = {}
        self._stars: dict[str, set[str]] = defaultdict(set)
        self._modules: dict[str, list[str]] = defaultdict(list)
        self._known: dict[tuple[str, str], frozenset[str]] = {}
        for path, tree in trees.items():
            self._bound[path] = self._imports(path, tree)
            name = module_of(path)
            while name:
                self._modules[name].append(path)
                name = name.partition(".")[2]
        self._by_last: dict[str, set[str]] = defaultdict(set)
        for full in {full for bound in self._bound.values() for targets in bound.values() for full in targets}:
            self._by_last[full.rpartition(".")[2]].add(full)
        for path, tree in trees.items():
            for node in tree.body:
                if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                    continue
                if (value := text_of(node.value)) is not None:
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        if isinstance(target, ast.Name) and value.partition(".")[0] in self._bound[path]:
                            self._bound[path].setdefault(target.id, set()).update(self._expanded(path, value))

    def meanings(self, path: str, text: str) -> frozenset[str]:
        """The full dotted names that ``text``, as written in the file at ``path``, may stand for."""
        if (path, text) not in self._known:
            found: set[str] = set()
            pending = set(self._expanded(path, text))
            for _ in range(REACH):
                found |= pending
                pending = {full for name in pending for full in self._followed(name)} - found
            self._known[path, text] = frozenset(found)
        return self._known[path, text]

    def is_starred(self, path: str, text: str) -> bool:
        """Whether ``text`` can only come from a star import of the file at ``path``."""
        return text.partition(".")[0] not in self._bound[path]

    def imported(self, path: str, name: str) -> bool:
        """Whether a file of the tree imports ``name`` by name from the file at ``path``."""
        return any(path in self._modules.get(full.rpartition(".")[0], ()) for full in self._by_last.get(name, ()))

    def _imports(self, path: str, tree: ast.Module) -> dict[str, set[str]]:
        bound: dict[str, set[str]] = defaultdict(set)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound[alias.asname or alias.name.partition(".")[0]].add(
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                base = self._base(path, node)
                for alias in node.names:
                    if alias.name == "*":
                        self._stars[path].add(base)
                    else:
                        bound[alias.asname or alias.name].add(f"{base}.{alias.name}")
        return bound

    @staticmethod
    def _base(path: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = list(PurePosixPath(path).parent.parts)
        kept = package[: len(package) - node.level + 1]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def _expanded(self, path: str, text: str) -> Iterator[str]:
        head, _, tail = text.partition(".")
        for target in self._exported(path, head, REACH):
            yield f"{target}.{tail}" if tail else target

    def _exported(self, path: str, name: str, reach: int) -> set[str]:
        """What ``name`` is bound to in the file at ``path``, star imports included."""
        if name in self._bound[path]:
            return self._bound[path][name]
        found: set[str] = set()
        for base in self._stars.get(path, ()):
            if base == PACKAGE and STARRED.fullmatch(name):
                found.add(f"{base}.{name}")
            elif reach:
                for other in self._modules.get(base, ()):
                    found |= self._exported(other, name, reach - 1)
        return found

    def _followed(self, name: str) -> Iterator[str]:
        head, _, rest = name.rpartition(".")
        while head and not name.startswith("torch."):
            if head in self._modules:
                for path in self._modules[head]:
                    yield from self._expanded(path, rest)
                return
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}"
