"""In which order one file does things: from which line on a name is wrapped, and of which class it is by then."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.project.aliases import Aliases, text_of
from fsdp_rules.project.walking import children, walk

#: What a first run writes in the place of FSDP1's class.
SHARDING = frozenset({"torch.distributed.fsdp.fully_shard", "fsdp_compat.shard", "fsdp_compat.wrap"})
#: What functions that wrap are called, unlike those that make a model's optimizer and give it back beside that.
WRAPPING = re.compile(r"(?<!un)wrap|shard|fsdp|ddp|parallel|distribut|prepare", re.IGNORECASE)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Wraps:
    """What one walk over the statements of a file notes, by scope and name.

    ``classes`` are the qualified names of all classes, ``instances`` the callees whose results a name is assigned.
    """

    def __init__(self, tree: ast.Module, aliases: Aliases) -> None:
        self.aliases = aliases
        self.classes: set[str] = set()
        self.instances: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._wrapped: dict[tuple[str, str], int] = {}
        self._rebound: dict[tuple[str, str], int] = {}
        self._by_name: dict[tuple[str, str], int] = {}
        # The models of which the last loop with such a target gives it units.
        self._over: dict[str, list[str]] = {}
        self._body(tree.body, "", 0)

    def since(self) -> dict[tuple[str, str], int]:
        """From which line on each (scope, name) is wrapped, where its function does that; a loop counts as one line.

        Where no ``FSDP(...)`` or ``fully_shard(...)`` says it, that is the last line that makes a name out of itself
        (``model = f(model)``, ``model, device = f(model)``), by a function of such a name where there is one.
        """
        return {**self._rebound, **self._by_name, **self._wrapped}

    def owner(self, scope: str) -> str:
        """The innermost class around ``scope``; the scope around it where there is none."""
        owner = scope
        while owner and owner not in self.classes:
            owner = owner.rpartition(".")[0]
        return owner or scope.rpartition(".")[0]

    def made_by(self, scope: str, text: str) -> Iterable[str]:
        """The callees whose results ``text`` is assigned in the nearest scope that assigns it any."""
        if text.startswith("self."):
            return self.instances.get((self.owner(scope), text), ())
        while True:
            found = self.instances.get((scope, text), ())
            if found or not scope:
                return found
            scope = scope.rpartition(".")[0]

    def _body(self, body: Iterable[ast.stmt], scope: str, loop: int) -> None:
        for node in body:
            if isinstance(node, Definition):
                inner = f"{scope}.{node.name}" if scope else node.name
                if isinstance(node, ast.ClassDef):
                    self.classes.add(inner)
                self._body(node.body, inner, 0)
                continue
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                self._assigned(node, node.value, scope, loop)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.value.args:
                text = text_of(node.value.args[0])
                if text is not None and self.aliases.dotted(node.value.func) in SHARDING:
                    for one in (text, *self._over.get(text, ())):
                        self._wrapped.setdefault((scope, one), loop or node.lineno)
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                self._over[node.target.id] = _run_over(node, node.target.id)
            around = loop or (node.lineno if isinstance(node, ast.For | ast.AsyncFor | ast.While) else 0)
            for child in children(node):
                if isinstance(child, ast.stmt):
                    self._body([child], scope, around)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    self._body(child.body, scope, around)

    def _assigned(self, node: ast.Assign, value: ast.Call, scope: str, loop: int) -> None:
        given = {text_of(argument) for argument in value.args}
        given |= {text_of(keyword.value) for keyword in value.keywords}
        callee = self.aliases.dotted(value.func)
        by_name = callee is not None and WRAPPING.search(callee.rpartition(".")[2]) is not None
        rebound = self._by_name if by_name else self._rebound
        for target in node.targets:
            if isinstance(target, ast.Tuple | ast.List):
                # model, device = wrap(model)
                parts = [text_of(element) for element in target.elts]
                rebound.update({(scope, one): loop or node.lineno for one in parts if one and one in given})
            text = text_of(target)
            if text is None:
                continue
            if callee is not None and (canonical(callee) == FSDP or callee in SHARDING):
                self._wrapped.setdefault((scope, text), loop or node.lineno)
            elif text in given:
                rebound[scope, text] = loop or node.lineno
            if callee is not None:
                home = self.owner(scope) if text.startswith("self.") else scope
                self.instances[home, text].add(callee)


def _run_over(loop: ast.For, unit: str) -> list[str]:
    """The dotted names in the list that ``loop`` runs over, and of what ``unit``, its target, is compared with."""
    found = [element for one in walk(loop.iter) if isinstance(one, ast.List) for element in one.elts]
    for test in (one for line in loop.body for one in walk(line) if isinstance(one, ast.Compare)):
        if text_of(test.left) == unit and isinstance(test.ops[0], ast.Is):
            found.append(test.comparators[0])
    return [text for element in found if (text := text_of(element)) is not None]
