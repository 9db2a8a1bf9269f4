"""The calls in each function of a file, in the order in which they have happened, and the functions used as values."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.walking import children

#: Decorators that register nothing.
PLAIN = frozenset(
    {
        *("abstractmethod", "cache", "cached_property", "classmethod", "compile", "contextmanager", "dataclass"),
        *("enable_grad", "inference_mode", "lru_cache", "no_grad", "overload", "override", "property", "record"),
        *("setter", "staticmethod", "wraps"),
    }
)
PARAMETERS = frozenset({"parameters", "named_parameters"})
#: Stands among the values for a call of what ``getattr`` gives by a name that another call has.
BY_NAME = "getattr()"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Arm = tuple[int, int, str]
Arms = tuple[Arm, ...]
Loops = tuple[tuple[int, int], ...]


class Step(NamedTuple):
    """One call: what is called, what it is given, where its text ends, and what is around it.

    ``given`` are dotted names, and the names of models whose parameters are given.
    ``arms`` are the conditional parts around it, each the line and column of the test and which of its parts it is;
    ``loops`` the first and the last line of every loop, innermost first.
    """

    callee: str
    given: tuple[str, ...]
    end: tuple[int, int]
    arms: Arms = ()
    loops: Loops = ()


class Steps(NamedTuple):
    """The steps of every function with calls, by its qualified name ("" for the module itself), in their order.

    ``values`` are the last names of what is handed on, kept in containers, returned or registered by a decorator; in
    quotes the texts that calls are given, which may be names for :data:`BY_NAME`.
    """

    of: dict[str, tuple[Step, ...]]
    values: frozenset[str]


def steps_in(tree: ast.Module) -> Steps:
    """What a file calls, and what it uses as values."""
    reader = _Reader()
    reader.body(tree.body, "", (), ())
    found = {scope: tuple(sorted(steps, key=lambda step: step.end)) for scope, steps in reader.found.items()}
    return Steps(found, frozenset(reader.values))


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, list[Step]] = {}
        self.values: set[str] = set()

    def body(self, body: Iterable[ast.AST], scope: str, arms: Arms, loops: Loops) -> None:
        for node in body:
            self._node(node, scope, arms, loops)

    def _node(self, node: ast.AST, scope: str, arms: Arms, loops: Loops) -> None:
        if isinstance(node, ast.Attribute):
            self._node(node.value, scope, arms, loops)
            return
        if isinstance(node, ast.Name | ast.Constant | ast.Lambda):
            return
        if isinstance(node, Function | ast.ClassDef):
            if any(_last(one) not in PLAIN for one in node.decorator_list):
                self.values.add(node.name)
            # A decorator is not called by the name of a function of the tree: hydra.main(...) is no main().
            for one in node.decorator_list:
                self.body(one.args if isinstance(one, ast.Call) else (), scope, arms, loops)
            self.body(node.body, f"{scope}.{node.name}".lstrip("."), (), ())
            return
        if isinstance(node, ast.Call):
            self.found.setdefault(scope, []).append(_step(node, arms, loops))
            if isinstance(node.func, ast.Call) and _last(node.func) == "getattr":
                self.values.add(BY_NAME)
        for value in _values(node):
            match value:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    self.values.add(name)
                case ast.Constant(value=str() as text) if text.isidentifier():
                    self.values.add(repr(text))
        if isinstance(node, ast.For | ast.While | ast.AsyncFor):
            loops = ((node.lineno, node.end_lineno or node.lineno), *loops)
        for child, arm in _parts(node):
            around = ((node.lineno, node.col_offset, arm), *arms) if arm and isinstance(node, LINED) else arms
            self._node(child, scope, around, loops)


LINED = ast.stmt | ast.expr | ast.ExceptHandler


def _values(node: ast.AST) -> Iterable[ast.AST | None]:
    """What ``node`` hands on, keeps or returns."""
    match node:
        case ast.Call():
            return (*node.args, *(keyword.value for keyword in node.keywords))
        case ast.List() | ast.Tuple() | ast.Set():
            return node.elts
        case ast.Dict():
            return node.values
        case ast.Assign() | ast.Return():
            return (node.value,)
    return ()


def _last(node: ast.expr) -> str:
    return (text_of(node.func if isinstance(node, ast.Call) else node) or "").rpartition(".")[2]


def _parts(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What is right inside ``node``, each with the name of the conditional part that it is in, or ""."""
    if isinstance(node, ast.If) and _asks_for_units(node.test):
        yield from ((child, "") for child in children(node))
    elif isinstance(node, ast.If | ast.IfExp):
        yield node.test, ""
        for name, arm in (("body", node.body), ("orelse", node.orelse)):
            yield from ((child, name) for child in (arm if isinstance(arm, list) else [arm]))
    elif isinstance(node, ast.BoolOp):
        yield node.values[0], ""
        yield from ((child, "later") for child in node.values[1:])
    elif isinstance(node, ast.ExceptHandler):
        yield from ((child, "handler") for child in node.body)
    elif isinstance(node, ast.Match):
        yield node.subject, ""
        for number, case in enumerate(node.cases):
            yield from ((child, f"case {number}") for child in case.body)
    else:
        yield from ((child, "") for child in children(node))


def _asks_for_units(test: ast.expr) -> bool:
    """Whether ``test`` is true of every unit of a sharded model, as in the loops that reshard them."""
    return isinstance(test, ast.Call) and _last(test) == "isinstance" and "FSDPModule" in ast.unparse(test)


def _step(node: ast.Call, arms: Arms, loops: Loops) -> Step:
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    func = node.func
    callee = text_of(func) or (f"?.{func.attr}" if isinstance(func, ast.Attribute) else "")
    if isinstance(func, ast.Subscript):
        callee = text_of(func.value) or ""
    texts = tuple(text for one in given if (text := text_of(_owner_of_parameters(one))) is not None)
    return Step(callee, texts, (node.end_lineno or 0, node.end_col_offset or 0), arms, loops)


def _owner_of_parameters(node: ast.expr) -> ast.expr:
    """The model in ``model.parameters()``, and any other ``node`` itself."""
    func = node.func if isinstance(node, ast.Call) else None
    return func.value if isinstance(func, ast.Attribute) and func.attr in PARAMETERS else node
