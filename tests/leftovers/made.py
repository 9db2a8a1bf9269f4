"""What the objects are made of that have methods of FSDP1's names: classes of the tree, or other wrappers of torch."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.leftovers.names import PACKAGE
from tests.leftovers.resolve import Names, module_of, text_of

#: Wrappers of torch's own with methods of the same names.
WRAPPERS = frozenset(
    {"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"}
)


class Owners:
    """The classes of a tree and what its attributes are made of: by their constructors, never by their names."""

    def __init__(self, trees: Mapping[str, ast.Module], names: Names) -> None:
        self._names = names
        #: (module, class) → (path, class).
        self._classes: dict[str, tuple[str, ast.ClassDef]] = {}
        #: The attribute's name → (path, everything that is assigned to an attribute of that name).
        self._attributes: dict[str, list[tuple[str, ast.expr | None]]] = defaultdict(list)
        for path, tree in trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self._classes[f"{module_of(path)}.{node.name}"] = (path, node)
                for target, value in _assigned(node):
                    if isinstance(target, ast.Attribute):
                        self._attributes[target.attr].append((path, value))

    def is_another(self, path: str, scope: ast.AST, owner: ast.expr, method: str) -> bool:
        """Whether ``owner.method``, in the function ``scope`` of the file at ``path``, is surely not FSDP1's.

        So it is where everything that ``owner`` is assigned is made by DistributedDataParallel, or by a class of the
        tree that has a ``method`` of its own and inherits nothing from FSDP1.
        """
        if isinstance(owner, ast.Attribute):
            made = self._attributes.get(owner.attr, [])
        elif isinstance(owner, ast.Name):
            made = [
                (path, value)
                for node in ast.walk(scope)
                for target, value in _assigned(node)
                if isinstance(target, ast.Name) and target.id == owner.id
            ]
            if not any(value is not None and value.lineno <= owner.lineno for _, value in made):
                return False
        else:
            return False
        return bool(made) and all(value is not None and self._lacks(where, value, method) for where, value in made)

    def _lacks(self, path: str, value: ast.expr, method: str) -> bool:
        text = text_of(value.func) if isinstance(value, ast.Call) else None
        if text is None:
            return False
        meanings = self._names.meanings(path, text) | {f"{module_of(path)}.{text}"}
        if meanings & WRAPPERS:
            return True
        return any(self._is_own(full, method) for full in meanings)

    def _is_own(self, full: str, method: str) -> bool:
        """Whether the class of the tree that ``full`` names defines ``method``."""
        found = [entry for name, entry in self._classes.items() if name == full or name.endswith(f".{full}")]
        return bool(found) and all(
            any(isinstance(entry, ast.FunctionDef) and entry.name == method for entry in node.body)
            and not any(name.startswith(PACKAGE) for base in node.bases for name in self._meant(path, base))
            for path, node in found
        )

    def _meant(self, path: str, base: ast.expr) -> frozenset[str]:
        text = text_of(base)
        return self._names.meanings(path, text) if text is not None else frozenset()


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What ``node`` binds, and to what; None where that is not said by an assignment of a single value."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple | ast.List):
                yield from ((element, None) for element in target.elts)
            else:
                yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        if node.value is not None:
            yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.AugAssign):
        yield node.target, None
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, None
