"""Where a program's optimizers come from: those built from a model that is followed, and those of unknown origin."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fsdp_rules.project.aliases import Aliases, text_of
from fsdp_rules.project.walking import children, walk

#: What a name that holds an optimizer ends with, by what people call it.
OPTIMIZER = re.compile(r"(^|_)(opt|optim|optimizer|optimiser)s?$")
#: Names of functions and methods that build an optimizer for a model.
BUILDER = re.compile(
    r"(build|configure|construct|create|get|init|initialize|make|prepare|set_?up)_(?!\w*(state|sched))\w*optim\w*"
)
#: Names of what builds one, and does not hold one.
VERB = re.compile(r"^_*(get|make|build|create|configure|setup|init|prepare|has|is|load|offload|save|use|with)_")
#: Ends of the names of classes of optimizers, beside all of torch.optim.
KNOWN = ("adam", "adamw", "adam8bit", "adamw8bit", "adafactor", "adagrad", "lion", "lamb", "muon", "rmsprop", "sgd")
#: Classes of optimizers, by what libraries call them.
CLASS = re.compile(r"[A-Z]\w*(Adam|AdamW|Adagrad|Lamb|Lion|Muon|RMSprop|SGD)(W|_?\d+bit)?")
#: The method of Lightning's modules that builds their optimizers, and which its trainer calls.
HOOK = "configure_optimizers"
#: Functions that make settings or hold what there is, and methods that make texts or settings.
PLAIN = frozenset({"bool", "dict", "float", "frozenset", "int", "list", "set", "sorted", "str", "tuple"})
PARSES = re.compile(r"parse(_known)?(_intermixed)?(_args)?(_into_dataclasses)?")
TEXTS = frozenset({"format", "join", "lower", "replace", "strip", "upper"})
#: Ends of the names of objects that hold settings.
SETTINGS = re.compile(r"(args|cfg|conf|config|configuration|hparams|options|opts|settings)$", re.IGNORECASE)
#: Modules of torch.optim that hold no optimizers.
BESIDE = ("torch.optim.lr_scheduler.", "torch.optim.swa_utils.")


class Optimizer(NamedTuple):
    """An optimizer that ``scope`` builds, or gets from ``callee``, with every name that its parameters are read from.

    ``callee`` is "" where its name says what it builds; ``used``: it only steps here, or (``callee`` is HOOK) that
    method is called here. ``end`` is where the call ends.
    """

    scope: str
    callee: str
    models: tuple[str, ...]
    used: bool = False
    end: tuple[int, int] = (0, 0)


def optimizers_in(tree: ast.Module, aliases: Aliases) -> tuple[Optimizer, ...]:
    """Every optimizer of a file, in the order of the text."""
    return tuple(_Reader(aliases).body(tree.body, "", {}))


class _Reader:
    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases

    def body(self, body: Iterable[ast.stmt], scope: str, values: dict[str, list[ast.expr]]) -> Iterator[Optimizer]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{scope}.{node.name}" if scope else node.name
                yield from self.body(node.body, inner, {})
                continue
            self._note(node, values)
            for child in children(node):
                if isinstance(child, ast.stmt):
                    yield from self.body([child], scope, values)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    yield from self.body(child.body, scope, values)
                else:
                    yield from self._built(child, scope, values)
            if isinstance(node, ast.Assign):
                yield from self._given(node, scope, values)

    def _plainly(self, func: ast.expr) -> str:
        """The dotted name of ``func``, "" where it is asked for by text or taken from a table."""
        return "" if any(isinstance(node, ast.Call) for node in walk(func)) else self._aliases.dotted(func) or ""

    def _note(self, node: ast.stmt, values: dict[str, list[ast.expr]]) -> None:
        """Remember what each name is made of: the parameters of an optimizer often have a name of their own."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in walk(target):
                    if isinstance(name, ast.Name):
                        values.setdefault(name.id, []).append(node.value)
        elif isinstance(node, ast.For):
            for name in walk(node.target):
                if isinstance(name, ast.Name):
                    values.setdefault(name.id, []).append(node.iter)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
                values.setdefault(func.value.id, []).extend(node.value.args)

    def _built(self, node: ast.AST, scope: str, values: dict[str, list[ast.expr]]) -> Iterator[Optimizer]:
        for call in walk(node):
            if not isinstance(call, ast.Call):
                continue
            if is_optimizer(self._plainly(call.func)):
                given = [*call.args[:1], *(one.value for one in call.keywords if one.arg in (None, "params"))]
                yield Optimizer(scope, "", tuple(_names(given, values)), end=_end(call))
            elif isinstance(call.func, ast.Attribute) and call.func.attr == "step":
                name = (text_of(call.func.value) or "").rpartition(".")[2]
                if holds_optimizer(name):
                    yield Optimizer(scope, "", (), used=True)
            elif isinstance(call.func, ast.Attribute) and call.func.attr == HOOK and not scope.endswith(f".{HOOK}"):
                yield Optimizer(scope, HOOK, (), used=True)

    def _given(self, node: ast.Assign, scope: str, values: dict[str, list[ast.expr]]) -> Iterator[Optimizer]:
        """An optimizer that a call gives whose class is not known."""
        value = node.value
        if not isinstance(value, ast.Call) or is_optimizer(self._plainly(value.func)):
            return
        targets = [
            one for target in node.targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        if any(holds_optimizer((text_of(target) or "").rpartition(".")[2]) for target in targets):
            if _is_setting(value) or self._is_passed_on(value, {text_of(target) for target in targets}, values):
                return
            callee = self._plainly(value.func) or "?"
            given = [*value.args, *(keyword.value for keyword in value.keywords)]
            known = BUILDER.fullmatch(callee.rpartition(".")[2]) is not None
            if known and isinstance(value.func, ast.Attribute):
                given.append(value.func.value)
            yield Optimizer(scope, "" if known else callee, tuple(_names(given, values)), end=_end(value))

    def _is_passed_on(self, value: ast.Call, targets: set[str | None], values: dict[str, list[ast.expr]]) -> bool:
        """Whether the optimizer is one that the call is given, which is known where that was built."""
        built = [text for one in value.args if (text := text_of(one)) in targets and text is not None]
        calls = [entry for text in built for entry in values.get(text, ()) if isinstance(entry, ast.Call)]
        return any(is_optimizer(self._plainly(call.func)) for call in calls)


def _end(call: ast.Call) -> tuple[int, int]:
    return call.end_lineno or 0, call.end_col_offset or 0


def _is_setting(value: ast.Call) -> bool:
    """Whether ``value`` makes a text, a flag or a dictionary of settings, and no optimizer."""
    if isinstance(value.func, ast.Attribute) and PARSES.fullmatch(value.func.attr):
        return True
    inner = [node for one in (*value.args, *value.keywords) for node in walk(one)]
    if any(isinstance(node, ast.Call | ast.Lambda) for node in inner):
        return False
    if isinstance(value.func, ast.Name):
        return value.func.id in PLAIN
    if not isinstance(value.func, ast.Attribute):
        return False
    owner = text_of(value.func.value) or ""
    return value.func.attr in TEXTS or (value.func.attr == "get" and any(map(SETTINGS.search, owner.split("."))))


def is_optimizer(full: str) -> bool:
    """Whether the dotted name ``full`` is the class of an optimizer."""
    if full.startswith(BESIDE):
        return False
    name = full.rpartition(".")[2]
    return full.startswith("torch.optim.") or name.lower() in KNOWN or CLASS.fullmatch(name) is not None


def holds_optimizer(name: str) -> bool:
    """Whether a name says that it holds an optimizer."""
    return OPTIMIZER.search(name) is not None and VERB.search(name) is None


def _names(given: Iterable[ast.expr], values: dict[str, list[ast.expr]]) -> Iterator[str]:
    """Every dotted name in ``given`` and in what the names there are made of, each once."""
    pending = list(given)
    seen: set[str] = set()
    while pending:
        for node in walk(pending.pop()):
            text = text_of(node) if isinstance(node, ast.Name | ast.Attribute) else None
            if text is not None and text not in seen:
                seen.add(text)
                yield text
                pending += values.get(text, ())
