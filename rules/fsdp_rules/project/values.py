"""What an expression may evaluate to, as flows from the places that it reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.project.aliases import Aliases, text_of
from fsdp_rules.project.passing_on import passed_on
from fsdp_rules.project.places import INNER, Flow, Place
from fsdp_rules.project.texts import (
    OTHER_WRAPPERS,
)
from fsdp_rules.project.wraps import Wraps

#: FSDP1's class by its full name.
CLASS = "torch.distributed.fsdp.FullyShardedDataParallel"
#: Methods of a model that give the model.
SAME_MODEL = frozenset({"compile", "eval", "train", "to", "cuda", "cpu", "float", "half", "bfloat16", "requires_grad_"})


class Values:
    """Collects the flows of one file; ``wraps`` says what stands above the line that wraps a name.

    ``kept`` are the lines of wraps that a comment keeps.
    """

    def __init__(
        self, path: str, aliases: Aliases, wraps: Wraps, gated: Mapping[int, bool], kept: Set[int] = frozenset()
    ) -> None:
        self.path = path
        self.aliases = aliases
        self.wraps = wraps
        self.since = wraps.since()
        self.gated = gated
        self.kept = kept
        self.flows: list[Flow] = []
        self.flags: set[str] = set()
        #: The lines on which models are wrapped, but for those in gates.
        self.wrapped: set[int] = set()
        #: Every (scope, name) that is assigned.
        self.assigned: set[tuple[str, str]] = set()

    def flow(self, source: Place, target: Place, sure: bool = True) -> None:
        """Note one flow."""
        if source != target:
            self.flows.append(Flow(source, target, sure))

    def var(self, scope: str, text: str, early: bool = False) -> Place:
        """The place of a name; that of ``self.x`` is in the class around ``scope``."""
        home = self.wraps.owner(scope) if text.startswith("self.") else scope
        return Place("early" if early else "var", self.path, home, text)

    def found(self, node: ast.expr) -> None:
        """Note that the file wraps a model at ``node``."""
        is_gated = self.gated.get(node.lineno)
        self.flags.add("gated" if is_gated else "fsdp1")
        self.wrapped.update(() if is_gated else (node.lineno,))
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "process_group" and not isinstance(keyword.value, ast.Constant | ast.Tuple):
                self.flags.add("own_group")

    def targets(self, target: ast.expr, scope: str) -> Iterator[Place]:
        """The places that an assignment to ``target`` puts its value in."""
        whole = True
        while isinstance(target, ast.Subscript | ast.Starred) and text_of(target) is None:
            whole = whole and isinstance(target, ast.Starred)
            target = target.value
        text = text_of(target)
        if text is not None:
            if whole:
                self.assigned.add((scope, text))
            yield self.var(scope, text)
            if self._is_early(scope, text, target.lineno):
                yield self.var(scope, text, early=True)
            if scope in self.wraps.classes and "." not in text:
                yield Place("var", self.path, scope, f"self.{text}")
                yield Place("attr", self.path, name=text)
        if isinstance(target, ast.Attribute):
            yield Place("attr", self.path, name=target.attr)
            if text is None or not text.startswith("self.") or text.count(".") > 1:
                yield Place("set", name=target.attr)

    def callees(self, callee: str, func: ast.expr, scope: str) -> list[str]:
        """The functions that the fully dotted ``callee`` may mean, where a name in it is of a class of the tree."""
        text = text_of(func) or ""
        found: list[str] = []
        whole = self.wraps.made_by(scope, text)
        for made in whole:
            found += [f"{made}.__call__", f"{made}.forward"]
        owner, _, method = text.rpartition(".")
        if owner and owner != "self" and callee == text:
            found += [f"{made}.{method}" for made in self.wraps.made_by(scope, owner)]
        return [callee, *sorted(found)]

    def value(self, node: ast.expr, place: Place, scope: str, sure: bool = True) -> None:
        """Let everything that ``node`` may evaluate to flow into ``place``."""
        match node:
            case ast.IfExp():
                self.value(node.body, place, scope, sure)
                self.value(node.orelse, place, scope, sure)
            case ast.BoolOp():
                for operand in node.values:
                    self.value(operand, place, scope, sure)
            case ast.Await() | ast.NamedExpr() | ast.Starred():
                self.value(node.value, place, scope, sure)
            case ast.List() | ast.Tuple() | ast.Set():
                for element in node.elts:
                    self.value(element, place, scope, sure and len(node.elts) == 1)
            case ast.Dict():
                for element in node.values:
                    self.value(element, place, scope, False)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                self.value(node.elt, place, scope, sure)
            case ast.DictComp():
                self.value(node.value, place, scope, False)
            case ast.Call() if text_of(node) is None:
                self._call_value(node, place, scope, sure)
            case ast.Subscript() if text_of(node) is None:
                self.value(node.value, place, scope, False)
            case _:
                self._name(node, place, scope, sure)

    def _name(self, node: ast.expr, place: Place, scope: str, sure: bool) -> None:
        if (text := text_of(node)) is None:
            return
        owner = text.rpartition(".")[0]
        self.flow(self.var(scope, text, self._is_early(scope, text, node.lineno)), place, sure)
        # What a class gives itself is followed as its own, also where that is an attribute of what it has.
        if owner and not text.startswith("self."):
            self.flow(Place("attr", name=text.rpartition(".")[2]), place, False)
        if text.endswith(INNER):
            self.flow(self.var(scope, text.rpartition(".")[0]), place, False)

    def _call_value(self, node: ast.Call, place: Place, scope: str, sure: bool) -> None:
        if self.aliases.is_factory(node.func):
            self.found(node)
            self.flow(self.seed(node), place, sure)
            return
        callee = self.aliases.dotted(node.func)
        if callee is None:
            self._made(node, place, scope, sure)
            return
        name = callee.rpartition(".")[2]
        if canonical(callee) in (FSDP, "wrap") or callee in self.aliases.factories or self.aliases.is_mapped(node):
            self.found(node)
            # What a partial wraps is rewritten where the partial is made.
            stays = node.lineno in self.kept and canonical(callee) == FSDP
            self.flow(self.seed(node)._replace(kind="kept") if stays else self.seed(node), place, sure)
        elif callee in OTHER_WRAPPERS:
            self.flow(Place("other", self.path), place, sure)
        elif (given := passed_on(node, callee)) is not None:
            self.value(given, place, scope, sure)
        elif name in SAME_MODEL:
            inner = node.func.value if isinstance(node.func, ast.Attribute) else None
            inner = node.args[0] if inner is None and node.args else inner
            if inner is not None:
                self.value(inner, place, scope, sure)
        elif name == "partial" and node.args:
            if self.aliases.is_factory(node):
                self.found(node)
        else:
            for one in self.callees(callee, node.func, scope):
                self.flow(Place("call", self.path, scope, one), place, sure)

    def _made(self, node: ast.Call, place: Place, scope: str, sure: bool) -> None:
        if isinstance(node.func, ast.Call):
            if (maker := self.aliases.dotted(node.func.func)) is not None:
                self.flow(Place("made", self.path, scope, maker), place, sure)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in SAME_MODEL:
            self.value(node.func.value, place, scope, sure)
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            # Trainer(model).build(): the method of what the inner call gives.
            maker = self.aliases.dotted(node.func.value.func)
            if maker is not None:
                self.flow(Place("call", self.path, scope, f"{maker}.{node.func.attr}"), place, sure)

    def arguments(self, callee: str, node: ast.Call, scope: str) -> None:
        """What the call ``node`` gives to ``callee``."""
        starred = False
        # What a partial of FSDP1's class is given, that class is given.
        callee = CLASS if callee in self.aliases.factories else callee
        for position, argument in enumerate(node.args):
            starred = starred or isinstance(argument, ast.Starred)
            part = "*" if starred else str(position)
            self.value(argument, Place("arg", self.path, scope, callee, part), scope, sure=not starred)
        for keyword in node.keywords:
            place = Place("arg", self.path, scope, callee, keyword.arg or "**")
            self.value(keyword.value, place, scope, sure=keyword.arg is not None)

    def seed(self, node: ast.expr) -> Place:
        """The place of the wrap at ``node``."""
        return Place("seed", self.path, part=str(node.lineno))

    def _is_early(self, scope: str, text: str, line: int) -> bool:
        return line < self.since.get((scope, text), 0)
