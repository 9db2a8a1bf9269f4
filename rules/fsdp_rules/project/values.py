"""What an expression may evaluate to, as flows from the places that it reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.project.aliases import Aliases, text_of
from fsdp_rules.project.passing_on import passed_on
from fsdp_rules.project.places import ANY, INNER, Flow, Place, any_name, scopes
from fsdp_rules.project.texts import (
    HOLDING,
    OTHER_WRAPPERS,
    TAKING,
    element_text,
    key_of,
    lambda_name,
    method_of_some,
    owner_of,
    prefix_of,
    unnamed,
)
from fsdp_rules.project.wraps import Wraps

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
        self.subgroups: frozenset[tuple[int, int]] = frozenset()

    def unnamed(self, node: ast.expr) -> str:
        """What the callee ``node`` goes by that has no dotted name."""
        return unnamed(node, self.aliases)

    def flow(self, source: Place, target: Place, sure: bool = True) -> None:
        """Note one flow."""
        if source != target:
            self.flows.append(Flow(source, target, sure))

    def var(self, scope: str, text: str, early: bool = False) -> Place:
        """The place of a name; that of ``self.x`` is in the class around ``scope``."""
        home = self.wraps.owner(scope) if text.startswith("self.") else scope
        return Place("early" if early else "var", self.path, home, text)

    def put(self, scope: str, text: str) -> Place:
        """The place of what is put into a container: no name is bound by it, so that an outer one may be meant."""
        return self.var(scope, text) if text.startswith("self.") else Place("put", self.path, scope, text)

    def settled(self, flow: Flow) -> Flow:
        """``flow`` into its container: of a scope around it, else an imported one, else the module's (star imports)."""
        place = flow.target
        if place.kind != "put":
            return flow
        root, _, rest = place.name.partition(".")
        home = next((one for one in scopes(place.scope) if (one, root) in self.assigned), None)
        if home is None and root in self.aliases.names:
            full = f"{self.aliases.names[root]}.{rest}".rstrip(".")
            return flow._replace(target=Place("put", self.path, "", full))
        target = Place("var", self.path, home or "", place.name)
        return flow._replace(target=target._replace(kind="item", part=place.part) if place.part else target)

    def found(self, node: ast.expr) -> None:
        """Note that the file wraps a model at ``node``."""
        is_gated = self.gated.get(node.lineno)
        self.flags.add("gated" if is_gated else "fsdp1")
        self.wrapped.update(() if is_gated else (node.lineno,))
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "process_group" and not isinstance(keyword.value, ast.Constant | ast.Tuple):
                self.flags.add("own_group")
                if (keyword.value.lineno, keyword.value.col_offset) in self.subgroups:
                    self.flags.add("subgroup")

    def targets(self, target: ast.expr, scope: str) -> Iterator[Place]:
        """The places that an assignment to ``target`` puts its value in."""
        key, whole = None, True
        while isinstance(target, ast.Subscript | ast.Starred) and text_of(target) is None:
            if isinstance(target, ast.Subscript):
                key, whole = key_of(target), False
            target = target.value
        text = text_of(target)
        if text is not None:
            if whole:
                self.assigned.add((scope, text))
            yield self.var(scope, text) if whole else self.put(scope, any_name(text))
            if key is not None:
                yield self.put(scope, text)._replace(part=key)
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
                self._dict(node, place, scope)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                self.value(node.elt, place, scope, sure)
            case ast.DictComp():
                self.value(node.value, place, scope, False)
            case ast.Call() if text_of(node) is None:
                self._call_value(node, place, scope, sure)
            case ast.Lambda():
                self.flow(Place("fn", self.path, "", lambda_name(node, scope)), place, sure)
            case ast.Subscript() if text_of(node) is None:
                self._element(node, place, scope, sure)
            case _:
                self._name(node, place, scope, sure)

    def _name(self, node: ast.expr, place: Place, scope: str, sure: bool) -> None:
        if (text := text_of(node)) is None:
            self._member(node, place, scope, sure)
            return
        owner, _, method = text.rpartition(".")
        for made in self.wraps.made_by(scope, owner) if owner and owner != "self" else ():
            if made.rpartition(".")[2][:1].isupper():
                self.flow(Place("fn", self.path, scope, f"{made}.{method}"), place, sure)
        self.flow(self.var(scope, text, self._is_early(scope, text, node.lineno)), place, sure)
        # What a class gives itself is followed as its own, also where that is an attribute of what it has.
        if owner and not text.startswith("self."):
            self.flow(Place("attr", name=text.rpartition(".")[2]), place, False)
        if text.endswith(INNER):
            self.flow(self.var(scope, text.rpartition(".")[0]), place, False)

    def _member(self, node: ast.expr, place: Place, scope: str, sure: bool) -> None:
        """What an attribute of a call's result is: a method of what a class makes, or a name of a module."""
        if not isinstance(node, ast.Attribute):
            return
        if (element := element_text(node)) is not None:
            self.flow(self.var(scope, element), place, False)
            self.flow(Place("attr", name=node.attr), place, False)
        if not isinstance(node.value, ast.Call):
            return
        maker = self.aliases.dotted(node.value.func) or ""
        module = node.value.args[0] if node.value.args else None
        if not maker.endswith("import_module"):
            self.flow(Place("fn", self.path, scope, f"{maker}.{node.attr}"), place, sure)
            if maker:
                self.flow(Place(f"call.{node.attr}", self.path, scope, maker), place, False)
        elif isinstance(module, ast.Constant) and isinstance(module.value, str):
            self.flow(Place("fn", self.path, scope, f"{module.value}.{node.attr}"), place, sure)
        else:
            self.flow(Place("named", self.path, name=node.attr), place, False)

    def _dict(self, node: ast.Dict, place: Place, scope: str) -> None:
        for key, element in zip(node.keys, node.values, strict=True):
            self.value(element, place, scope, False)
            if place.kind == "var" and isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.value(element, place._replace(kind="item", part=key.value), scope, False)

    def _element(self, node: ast.Subscript, place: Place, scope: str, sure: bool) -> None:
        text, key = text_of(node.value), key_of(node)
        if text is not None and key is not None:
            self.flow(self.var(scope, text)._replace(kind="item", part=key), place, sure)
        # Of a list that surely holds wrapped models each element is one; a dictionary often holds other things too.
        self.value(node.value, place, scope, sure and key is None)

    def _call_value(self, node: ast.Call, place: Place, scope: str, sure: bool) -> None:
        if self.aliases.is_factory(node.func):
            self.found(node)
            self.flow(self.seed(node), place, sure)
            return
        if (node.lineno, node.col_offset) in self.subgroups:
            self.flow(Place("subgroup", self.path), place, sure)
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
            bound = Place("shift", self.path, scope, self.unnamed(node), str(len(node.args) - 1))
            self.value(node.args[0], bound, scope, sure)
            self.flow(bound, place, sure)
        elif callee in ("getattr", "globals"):
            self.flow(Place("members", self.path, scope, owner_of(node), prefix_of(node)), place, False)
            self.flow(self.var(scope, f"{owner_of(node)}.{ANY}"), place, False)
        elif name in TAKING and isinstance(node.func, ast.Attribute):
            self.value(node.func.value, place, scope, False)
            for one in self.callees(callee, node.func, scope):
                self.flow(Place("call", self.path, scope, one), place, False)
        elif name in HOLDING:
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                self.value(argument, place, scope, False)
        else:
            for one in self.callees(callee, node.func, scope):
                self.flow(Place("call", self.path, scope, one), place, sure)

    def _made(self, node: ast.Call, place: Place, scope: str, sure: bool) -> None:
        self.flow(Place("call", self.path, scope, self.unnamed(node.func)), place, sure)
        if (method := method_of_some(node.func, self.aliases)) is not None:
            self.flow(Place("call", self.path, scope, method), place, False)
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

    def seed(self, node: ast.expr) -> Place:
        """The place of the wrap at ``node``."""
        return Place("seed", self.path, part=str(node.lineno))

    def _is_early(self, scope: str, text: str, line: int) -> bool:
        return line < self.since.get((scope, text), 0)
