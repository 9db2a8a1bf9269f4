"""Where the arguments of calls go: to what is called, and to functions that a call is given."""

from __future__ import annotations

import ast

from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.places import Place
from fsdp_rules.project.texts import TAKING, lambda_name, method_of_some
from fsdp_rules.project.values import Values

#: FSDP1's class by its full name.
CLASS = "torch.distributed.fsdp.FullyShardedDataParallel"
#: Builtins that call none of the functions they are given.
PASSIVE = frozenset({"delattr", "getattr", "hasattr", "isinstance", "issubclass", "print", "zip"})


class Calls(Values):
    """Collects the flows of arguments, and those of functions that decorators are given."""

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

    def unnamed_call(self, node: ast.Call, scope: str) -> None:
        """What a call gives to a function that has no dotted name."""
        name = self.unnamed(node.func)
        self.value(node.func, Place("callee", self.path, scope, name), scope)
        self.arguments(name, node, scope)
        if (method := method_of_some(node.func, self.aliases)) is not None:
            self.arguments(method, node, scope)
        self.handed_functions(node, scope)

    def handed_functions(self, node: ast.Call, scope: str) -> None:
        """Let arguments reach a function that the same call hands on: ``partial``, ``submit``, ``spawn``."""
        if self.aliases.dotted(node.func) in PASSIVE:
            return
        given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg in ("target", "fn", "func"))]
        for index, argument in enumerate(given):
            name = self._handed(argument, scope)
            if name is None:
                continue
            if self.aliases.dotted(node.func) == "setattr" and node.args:
                # The object gets an attribute: what it is has to be followed, and no parameter of it takes the value.
                self.value(node.args[-1], Place("arg", self.path, scope, name, "setattr"), scope, sure=False)
                continue
            following: list[ast.expr] = list(node.args[index + 1 :]) if index < len(node.args) else []
            for keyword in node.keywords:
                if keyword.arg == "args" and isinstance(keyword.value, ast.Tuple | ast.List):
                    # torch.multiprocessing.spawn puts the rank in front.
                    shift = callee_tail(node) == "spawn"
                    following += [*([ast.Constant(0)] if shift else []), *keyword.value.elts]
                elif keyword.arg is not None:
                    place = Place("arg", self.path, scope, name, keyword.arg)
                    self.value(keyword.value, place, scope, sure=False)
            for position, value in enumerate(following):
                if isinstance(value, ast.Tuple | ast.List) and callee_tail(node) in ("spawn", "start_new_thread"):
                    for inner, element in enumerate(value.elts):
                        part = str(inner + (callee_tail(node) == "spawn"))
                        self.value(element, Place("arg", self.path, scope, name, part), scope, sure=False)
                else:
                    self.value(value, Place("arg", self.path, scope, name, str(position)), scope, sure=False)

    def _handed(self, node: ast.expr, scope: str) -> str | None:
        """What the function that ``node`` may be is called by."""
        if isinstance(node, ast.Name | ast.Attribute):
            return self.aliases.dotted(node)
        if isinstance(node, ast.Lambda):
            return lambda_name(node, scope)
        made = isinstance(node, ast.Call) and callee_tail(node) in ("partial", "getattr", *TAKING)
        if not made and not isinstance(node, ast.Subscript):
            return None
        name = self.unnamed(node)
        self.value(node, Place("callee", self.path, scope, name), scope)
        return name

    def decorated(self, decorator: ast.expr, definition: str, scope: str) -> None:
        """Give the function or class with the qualified name ``definition`` to its ``decorator``."""
        given = Place("fn", self.path, "", definition)
        callee = self.aliases.dotted(decorator)
        if callee is None:
            name = self.unnamed(decorator)
            self.value(decorator, Place("callee", self.path, scope, name), scope)
            self.flow(given, Place("arg", self.path, scope, name, "0"))
        else:
            for name in self.callees(callee, decorator, scope):
                self.flow(given, Place("arg", self.path, scope, name, "0"))

    def anonymous(self, node: ast.Lambda, scope: str) -> tuple[str, ...]:
        """The parameters of a lambda, which share the scope around it."""
        name = lambda_name(node, scope)
        arguments = node.args
        names = [one.arg for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
        for one in names:
            self.flow(Place("param", self.path, name, one), self.var(scope, one), False)
        self.value(node.body, Place("ret", self.path, name), scope, False)
        return tuple(names)


def callee_tail(node: ast.Call) -> str:
    """The last name of what is called, "" where that has none."""
    return (text_of(node.func) or "").rpartition(".")[2]
