"""Which sharding strategies a wrapped model may have, as far as its wrap and what the wrap reads say."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import element_text
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import canonical, expand
from fsdp_rules.fsdp1.strategy_names import NAMES, ZERO2
from fsdp_rules.model.wrap_arguments import Function, default_of, parsed, placed_wrap_of
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.places import module_name
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.walking import walk

ARGUMENT = "sharding_strategy"
#: Where FSDP1's constructor takes the strategy by its position.
POSITION = 2
ENUM = "ShardingStrategy"
#: What a value may pass through on its way; more is not followed.
DEPTH = 12
NOTHING = ast.Constant(None)


class UnknownValueError(Exception):
    """Only a running program has the value."""


def stays_gathered(model: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that FSDP1 keeps ``model`` gathered after forwards, and after backwards that reduce nothing."""
    if "keeps_gathered" not in file.project.flags:
        return Certainty.NO
    names = _strategies(model, file)
    if names is None:
        return Certainty.MAYBE
    if names.isdisjoint(ZERO2):
        return Certainty.NO
    # Under NO_SHARD nothing is ever gathered.
    return Certainty.YES if names <= ZERO2 | {"NO_SHARD"} else Certainty.MAYBE


def may_be_whole(model: cst.BaseExpression, file: File) -> bool:
    """Whether every rank of ``model`` may have its parameters whole, as under NO_SHARD."""
    if "unsharded" not in file.project.flags:
        return False
    names = _strategies(model, file)
    return names is None or "NO_SHARD" in names


def _strategies(model: cst.BaseExpression, file: File) -> set[str] | None:
    """The strategies that ``model`` may be wrapped with; None where they are not known."""
    found = placed_wrap_of(element_text(model) or "", file.scope(model), file)
    if found is None:
        return None
    path, call = found
    try:
        return {*_Values(path, file).of_argument(call, ARGUMENT, POSITION)}
    except UnknownValueError:
        return None


class _Values:
    """Follows values through the file at ``path``, those that it imports from, and the callers of its functions.

    Every question raises UnknownValueError for a value that is none of FSDP1's strategies as they are written.
    """

    def __init__(self, path: str, file: File, depth: int = DEPTH) -> None:
        if depth == 0:
            raise UnknownValueError
        self.path, self.file, self.depth = path, file, depth
        self.nodes = [*walk(parsed(file.project.sources[path]))]
        self.aliases = file.project.aliases(path)

    def of_argument(self, call: ast.Call, name: str, position: int, default: ast.expr = NOTHING) -> Iterator[str]:
        """The strategies that ``call`` may give the parameter ``name``."""
        if any(isinstance(entry, ast.Starred) for entry in call.args):
            raise UnknownValueError
        given = [*call.args[position : position + 1], *(one.value for one in call.keywords if one.arg == name)]
        spread = [one.value for one in call.keywords if one.arg is None]
        inside = [entry for value in spread if not given for entry in self._entries(value, name)]
        yield from self._of([*given, *inside] or [default])

    def _of(self, values: Iterable[ast.expr]) -> Iterator[str]:
        for value in values:
            known, _, name = self._known(value).partition(".")
            if known == ENUM and name in NAMES:
                yield name
            elif isinstance(value, ast.Constant) and value.value is None:
                yield "FULL_SHARD"
            elif isinstance(value, ast.Subscript) and self._known(value.value) == ENUM:
                yield from _literal(value.slice)
            elif isinstance(value, ast.IfExp):
                yield from self._of([value.body, value.orelse])
            elif isinstance(value, ast.BoolOp | ast.Dict):
                yield from self._of(value.values)
            elif isinstance(value, ast.Subscript):
                yield from self._of([value.value])
            elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
                yield from self._of([value.func.value, *value.args[1:]])
            else:
                yield from self._of_name(text_of(value))

    def _known(self, value: ast.expr) -> str:
        return canonical(expand(text_of(value) or "", self.aliases)) or ""

    def _of_name(self, text: str | None) -> Iterator[str]:
        if text is None:
            raise UnknownValueError
        home, _, name = self.aliases.get(text, "").rpartition(".")
        homes = [path for path in self.file.project.sources if home and module_name(path) == home]
        takers = [node for node in self.nodes if isinstance(node, Function) and text in _parameters(node)]
        values = self._assigned(text)
        if not values and not takers and not homes:
            raise UnknownValueError
        deeper = _Values(self.path, self.file, self.depth - 1)
        yield from deeper._of(values)
        for path in homes:
            yield from _Values(path, self.file, self.depth - 1)._of_name(name)
        for function in takers:
            yield from deeper._of_parameter(function, text)

    def _of_parameter(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[str]:
        """What the calls of ``function``, known by its name, give its parameter ``name``."""
        names = _parameters(function)
        is_method = names[0] in ("self", "cls")
        default = default_of(function, name) or ast.Name("")
        called = False
        for path in {self.path, self.file.path, *self.file.project.sources} & self.file.project.sources.keys():
            caller = _Values(path, self.file, self.depth)
            for call in caller.nodes:
                target = text_of(call.func) if isinstance(call, ast.Call) else None
                if isinstance(call, ast.Call) and target and target.rpartition(".")[2] == function.name:
                    called = True
                    yield from caller.of_argument(call, name, names.index(name) - is_method, default)
        if not called:
            raise UnknownValueError

    def _assigned(self, text: str) -> list[ast.expr]:
        found = []
        for node in self.nodes:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(text_of(target) == text for target in targets):
                value = getattr(node, "value", None)
                if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None:
                    raise UnknownValueError
                found.append(value)
        return found

    def _entries(self, value: ast.expr, key: str) -> Iterator[ast.expr]:
        """What the dictionary ``value``, or one that it is a name for, has for ``key``: nothing where it lacks it."""
        text = text_of(value)
        displays = self._assigned(text) if text is not None else [value]
        for display in displays:
            if isinstance(display, ast.Dict) and None not in display.keys:
                pairs = zip(display.keys, display.values, strict=True)
                yield from (one for name, one in pairs if isinstance(name, ast.Constant) and name.value == key)
            elif isinstance(display, ast.Call) and text_of(display.func) == "dict" and not display.args:
                yield from (one.value for one in display.keywords if one.arg == key)
            else:
                raise UnknownValueError
        if not displays:
            raise UnknownValueError
        for node in self.nodes:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Subscript) and text_of(target.value) == text is not None:
                if not isinstance(target.slice, ast.Constant):
                    raise UnknownValueError
                if target.slice.value == key and isinstance(node, ast.Assign):
                    yield node.value
            elif isinstance(node, ast.Call) and text is not None and text_of(node.func) == f"{text}.update":
                yield from (one.value for one in node.keywords if one.arg == key)
                for other in (*node.args, *(one.value for one in node.keywords if one.arg is None)):
                    yield from self._entries(other, key)


def _literal(node: ast.expr) -> Iterator[str]:
    if not isinstance(node, ast.Constant) or node.value not in NAMES:
        raise UnknownValueError
    yield str(node.value)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    return [entry.arg for entry in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
